"""Each command that a document shows is run by a test, and each that it names is understood."""

import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.support.documents import ROOT, Command, blocks, commands, documents, inline
from tests.support.programs import OPTIONS, WORKER, named_command, options_of, own_programs, refused
from tools.docs.proofs import marks_of_tests

ALL = [command for document in documents() for command in commands(document)]


class Proof(NamedTuple):
    """Which test, or else which file, proves those commands of a document that begin with a pattern."""

    document: str
    heading: str
    begins: str
    test: str
    less: str = ""
    """Why the test does not run them as they are written, and what it does instead."""

    def covers(self, command: Command) -> bool:
        return (
            command.document == self.document
            and self.heading in {"", command.heading}
            and re.match(self.begins, command.text) is not None
        )


# Those that are run as they are written.
PROOFS = (
    Proof("README.md", "Sixty seconds", "", "test_the_first_command_of_the_readme_works_in_a_fresh_checkout"),
    Proof("docs/how-to/deploying.md", "First start", "", "test_the_first_start_sets_a_worker_up"),
    Proof(
        "docs/how-to/pipeline.md", "Try it", "python -m",
        "test_the_commands_of_the_document_run_on_the_traffic_of_dev",
    ),
    Proof(
        "docs/how-to/contracts.md", "", "",
        "test_the_commands_of_the_document_compare_schemas_and_describe_events",
    ),
    Proof("docs/how-to/streams.md", "Other values", "", "test_exported_definitions_are_taken_as_files"),
    Proof(
        "docs/how-to/streams.md", "With the nats CLI", "",
        "test_the_nats_cli_takes_exported_files_on_a_small_single_server",
    ),
    Proof("docs/how-to/sending.md", "", "", "test_a_message_of_the_nats_cli_has_a_valid_form"),
    Proof("docs/how-to/lake.md", "", "python examples", "test_duckdb_polars_and_a_catalog_read_the_lake"),
    Proof(
        "docs/how-to/lake.md", "", "python3 -m venv|cd ",
        "test_dbt_and_airflow_run_in_an_environment_of_their_own",
    ),
    Proof(
        "docs/how-to/lake.md", "", "spark-pipelines",
        "test_a_declarative_pipeline_follows_the_lake_by_spark_connect",
    ),
    Proof("docs/reference/cli.md", "", "", "test_what_to_ask_at_three_in_the_morning"),
    Proof(
        "docs/how-to/partitions.md", "", "",
        "test_the_commands_of_the_document_divide_the_outbox_once_and_leave_a_record",
    ),
    Proof("docs/how-to/restoring.md", "", "", "test_the_commands_of_the_document_copy_everything"),
    Proof("docs/reference/doctor.md", "", "", "test_doctor_prints_what_its_document_shows"),
    Proof("docs/how-to/operations.md", "", "", "test_every_task_is_done_by_a_test"),
    Proof("docs/how-to/security.md", "Roles in PostgreSQL", "", "test_psql_makes_the_roles"),
    Proof(
        "docs/proof/simulation.md", "", "python -m tests.simulation --first",
        "test_the_trail_of_a_seed_is_printed",
    ),
    Proof(
        "docs/how-to/from-the-rust-worker.md", "", "",
        "test_the_commands_of_the_document_lead_from_the_old_worker",
    ),
    Proof("docs/how-to/upgrading.md", "", "", "test_what_to_ask_before_an_upgrade"),
)  # fmt: skip

# Those that no test runs as they are written; our own programs read their words all the same.
LESSER_PROOFS = (
    Proof(
        "docs/how-to/deploying.md", "Docker Compose", "",
        "test_the_commands_of_the_document_send_traffic_and_show_it",
        "other ports and another project, and only with -m compose",
    ),
    Proof(
        "docs/tutorial.md", "", "", "test_the_tutorial_does_what_it_shows",
        "the service has another port, and its packages are not installed once more",
    ),
    Proof(
        "README.md", "Running the tests", "",
        ".ci/run", "it runs these tests; the gate takes it from the document",
    ),
    Proof(
        "docs/how-to/pipeline.md", "Try it", "python3 -m venv",
        "test_the_commands_of_the_document_run_on_the_traffic_of_dev",
        "half a gigabyte is not installed twice; what is behind `--` runs, in a session with the rest",
    ),
    Proof(
        "docs/how-to/deploying.md", "Kubernetes", "",
        "test_kubectl_understands_every_command_of_the_document",
        "there is no cluster: kubectl makes overlay and secrets, and reads the words of the rest",
    ),
    Proof(
        "docs/how-to/deploying.md", "systemd", "", "test_the_commands_of_the_document_install_the_unit",
        "files and links are made below a folder; packages are not installed, nothing is started",
    ),
    Proof(
        "docs/how-to/pipeline.md", "The data pipeline", "",
        "test_the_commands_of_the_document_run_on_the_traffic_of_dev",
        "half a gigabyte is not installed twice; the jobs run on what requirements/dev.lock installs",
    ),
    Proof(
        "docs/how-to/pipeline.md", "Land for months", "",
        "test_a_query_that_goes_on_lands_what_arrives_until_it_is_stopped",
        "another interval and address, by the function of the command",
    ),
    Proof(
        "docs/how-to/pipeline.md", "Erase events", "",
        "test_an_erased_event_is_nowhere_and_stays_away", "another aggregate, by the function of the command",
    ),
    Proof(
        "docs/how-to/pipeline.md", "On a cluster", "",
        "test_the_commands_of_the_document_submit_a_job_with_its_packages_to_a_standalone_master",
        "other addresses and paths, and only with -m long",
    ),
    Proof(
        "docs/how-to/security.md", "Containers and dependencies", "docker",
        "test_the_worker_runs_without_privileges", "without the pinned base, and only with -m compose",
    ),
    Proof(
        "docs/how-to/security.md", "Containers and dependencies", "pip-audit",
        ".ci/run", "the gate asks the advisory service the same, with another form of report",
    ),
    Proof(
        "docs/proof/simulation.md", "", "python -m tests.simulation --postgres",
        "test_every_seed_keeps_all_promises", "fewer seeds",
    ),
    Proof(
        "docs/proof/simulation.md", "", "python -m tests.simulation --seeds",
        "test_every_seed_of_a_campaign_keeps_all_promises_and_all_faults_occur",
        "fewer seeds; planted bugs and stored cases have tests beside it",
    ),
    Proof(
        "docs/proof/soak.md", "", ".*--json",
        "test_a_soak_loses_and_doubles_nothing_under_faults", "25 s instead of ten minutes",
    ),
    Proof(
        "docs/proof/soak.md", "", ".*--negative-control",
        "test_a_planted_bug_fails_the_soak", "another of the planted bugs",
    ),
    Proof(
        "docs/proof/benchmarks.md", "", "",
        "test_the_quick_round_measures_every_workload", "a small round, only with -m long",
    ),
    Proof(
        "docs/proof/benchmarks-peers.md", "", "", "test_a_description_can_be_used",
        "needs other relays from the network; their descriptions and what is reckoned are checked",
    ),
    Proof(
        "docs/proof/failover.md", "", "", "test_fifty_kills_each_way_cost_two_seconds_each_and_nothing_else",
        "only with -m long, into another file",
    ),
    Proof(
        "docs/proof/benchmarks-pipeline.md", "", "",
        "test_the_jobs_of_the_pipeline_are_measured", "500 events",
    ),
)  # fmt: skip

NOT_COMMANDS = {"outbox wait": "a span"}
HISTORY = "CHANGELOG.md"
"""It names what is gone, too."""
OTHERS_OPTIONS = {"--processes": "said not to exist"}


def named(document: str) -> Iterator[tuple[str, list[str]]]:
    """Find our programs, and the worker's commands without it, in a document's blocks and sentences."""
    for command in commands(document):
        yield from own_programs(command.text)
    for code in inline(document):
        if code not in NOT_COMMANDS and (words := named_command(code)):
            yield WORKER, words
        yield from own_programs(code)


def test_documents_show_commands_in_blocks_that_say_so() -> None:
    unnamed = [(document, text) for document in documents() for _, name, text in blocks(document) if not name]
    assert unnamed == []


def test_every_command_of_a_document_is_run_by_one_test() -> None:
    proofs = {
        command: [proof.test for proof in (*PROOFS, *LESSER_PROOFS) if proof.covers(command)]
        for command in ALL
    }
    assert len(ALL) > 70
    assert {command: tests for command, tests in proofs.items() if len(tests) != 1} == {}


def test_each_proof_exists_and_is_needed() -> None:
    proofs, tests = (*PROOFS, *LESSER_PROOFS), files_of_tests()
    assert [proof for proof in proofs if proof.test not in tests and not (ROOT / proof.test).is_file()] == []
    assert [proof for proof in proofs if not any(map(proof.covers, ALL))] == []


def test_what_is_run_as_it_is_written_is_read_from_the_document() -> None:
    readers = {proof: (ROOT / files_of_tests()[proof.test]).read_text() for proof in PROOFS}
    assert [proof for proof, text in readers.items() if proof.document not in text] == []


def files_of_tests() -> dict[str, str]:
    return {name: path for path, _, name in (test.partition("::") for test in marks_of_tests())}


def test_our_programs_understand_every_command_and_option_that_is_named() -> None:
    """In one test, since all of their modules have to be imported."""
    today = [document for document in documents() if document != HISTORY]
    found = [(document, module, words) for document in today for module, words in named(document)]
    refusals = [(*one, refused(*one[1:])) for one in found]
    assert len(found) > 150
    assert [refusal for refusal in refusals if refusal[-1]] == []
    unknown = {document: unknown_options(document) for document in today}
    assert {document: options for document, options in unknown.items() if options} == {}


def unknown_options(document: str) -> set[str]:
    """Return what stands alone as an option, and is one of none of the programs that the document names."""
    programs = {module for module, _ in named(document)} - {WORKER}
    known = OPTIONS.union(*map(options_of, programs), OTHERS_OPTIONS)
    return {code.split()[0] for code in inline(document) if re.match(r"--\w", code)} - known


def test_every_pytest_path_of_a_document_exists(pytestconfig: pytest.Config) -> None:
    texts = [command.text for command in ALL] + [code for name in documents() for code in inline(name)]
    reported = [
        text.split("pytest ")[-1].split() for text in texts if re.search(r"(bin/|-m |^)pytest ", text)
    ]
    marks = {mark.partition(":")[0].partition("(")[0] for mark in pytestconfig.getini("markers")}
    assert {words[1] for words in reported if words[0] == "-m"} <= marks
    assert [
        words for words in reported if words[0].startswith("tests") and not (ROOT / words[0]).exists()
    ] == []
    assert len(reported) > 5


@pytest.mark.parametrize(
    "command",
    [
        "python -m sea_mq_worker outbox list --stat DEAD",
        "python -m sea_mq_worker outbox list --state DAED",
        "python -m sea_mq_worker outbox lst",
        ".venv/bin/python -m tests.soak --second 1",
        ".venv/bin/python -m tests.soak --seconds long",
        "kubectl exec d -- python -m sea_mq_worker doctor --strct",
        "python -m benchmarks.nothing",
    ],
)
def test_a_command_that_is_wrong_is_found(command: str) -> None:
    [(module, words)] = own_programs(command)
    assert refused(module, words)
