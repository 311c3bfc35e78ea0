"""deploy/kubernetes is valid, grants no more than is needed, and agrees with the worker's settings."""

import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from sea_mq_worker.settings import ENV_PREFIX, Settings
from tests.support.documents import ROOT, blocks, commands
from tests.support.programs import WORKER, refused

DOCUMENT = "docs/how-to/deploying.md"
FOLDER = ROOT / "deploy" / "kubernetes"
VERSIONS = ("1.29", "1.37")
KUSTOMIZE = "kustomization.yaml"
ROLES = "sql/roles.sql"
ENTRYPOINT = ROOT / "deploy" / "spark-entrypoint.sh"
SPARK_LOCK = ROOT / "requirements" / "spark.lock"
SHARED = {"SEA_MQ_CONTEXT", "SEA_MQ_CONSUMERS"}
NOT_KUBERNETES_OWN = {"PrometheusRule", "ServiceMonitor", "SparkApplication"}
OPERATORS_SCHEMA = ROOT / "tests" / "support" / "sparkapplication-v1beta2.json.gz"
"""Of Kubeflow's Spark operator, without its descriptions."""

needs_kubectl = pytest.mark.skipif(not shutil.which("kubectl"), reason="no kubectl is here")

FILES: Mapping[str, dict[str, Any]] = {
    str(path.relative_to(FOLDER)): yaml.safe_load(path.read_text())
    for path in sorted(FOLDER.rglob("*.yaml"))
    if path.name != KUSTOMIZE
}
DEPLOYMENT = FILES["deployment.yaml"]
JOB = FILES["migrate/job.yaml"]
PIPELINE = FILES["pipeline/cronjob.yaml"]["spec"]["jobTemplate"]["spec"]["template"]
CRON_JOBS = {
    name: FILES[f"maintenance/{name}.yaml"]["spec"]["jobTemplate"]["spec"] for name in ("doctor", "prune")
}
PODS = {
    "deployment": DEPLOYMENT["spec"]["template"]["spec"],
    "migrate": JOB["spec"]["template"]["spec"],
    **{name: CRON_JOBS[name]["template"]["spec"] for name in CRON_JOBS},
    "pipeline": PIPELINE["spec"],
}


def kustomization(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((folder / KUSTOMIZE).read_text())
    return found


def containers(pod: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [*pod.get("initContainers", ()), *pod["containers"]]


def literals(folder: Path = FOLDER) -> dict[str, str]:
    [generated] = kustomization(folder)["configMapGenerator"]
    return dict(literal.split("=", 1) for literal in generated["literals"])


def references(node: object, name: str) -> Iterator[str]:
    """Find the keys that are read from the Secret of this name."""
    if isinstance(node, dict):
        if node.get("name") == name and "key" in node:
            yield node["key"]
        if node.get("secretName") == name:
            yield from (item["key"] for item in node["items"])
        for kind, child in node.items():
            yield from () if kind == "configMapKeyRef" else references(child, name)
    elif isinstance(node, list):
        for child in node:
            yield from references(child, name)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "file", [file for file, text in FILES.items() if text["kind"] not in NOT_KUBERNETES_OWN]
)
def test_every_object_is_what_kubernetes_takes(file: str, version: str) -> None:
    kubernetes_validate.validate(FILES[file], version, strict=True)


@pytest.mark.parametrize("folder", sorted(path.parent for path in FOLDER.rglob(KUSTOMIZE)))
def test_a_kustomization_names_every_file_beside_it(folder: Path) -> None:
    beside = {path.name for path in folder.glob("*.yaml")} - {KUSTOMIZE}
    assert set(kustomization(folder)["resources"]) == beside


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The overlays of the document beside the checkout, and a cluster that nobody answers for."""
    (tmp_path / "sea-mq-worker").symlink_to(ROOT)
    for _, _, text in (block for block in blocks(DOCUMENT) if block[1] == "yaml"):
        file = tmp_path / text.splitlines()[0].removeprefix("# ")
        file.parent.mkdir(parents=True)
        file.write_text(text)
    for secret in re.findall(r"--from-file=\S+=\./(\S+)", (ROOT / DOCUMENT).read_text()):
        (tmp_path / secret).write_text("secret\n")
    (tmp_path / "config").write_text("""
        {"apiVersion": "v1", "kind": "Config", "current-context": "none",
          "clusters": [{"name": "none", "cluster": {"server": "http://127.0.0.1:1"}}],
          "contexts": [{"name": "none", "context": {"cluster": "none"}}]}
    """)
    return tmp_path


def kubectl(line: str, place: Path) -> subprocess.CompletedProcess[str]:
    """Run a command there."""
    program, *words = shlex.split(line)
    assert program == "kubectl"
    return subprocess.run(
        [program, *words], cwd=place, env=os.environ | {"KUBECONFIG": str(place / "config")},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("name", CRON_JOBS)
def test_a_scheduled_command_is_one_of_the_workers(name: str) -> None:
    [container] = PODS[name]["containers"]
    assert refused(WORKER, container["args"]) == ""


@needs_kubectl
@pytest.mark.parametrize("overlay", ["overlay", "overlay/migrate"])
def test_kubectl_builds_the_overlays_of_the_document(overlay: str, place: Path) -> None:
    built = list(yaml.safe_load_all(kubectl(f"kubectl kustomize {overlay}", place).stdout))
    folders = {".", "maintenance", "monitoring"} if overlay == "overlay" else {"migrate"}
    files = [path for path in FILES if str(Path(path).parent) in folders]
    changed = {
        key: value
        for entry in yaml.safe_load((place / overlay / KUSTOMIZE).read_text())["configMapGenerator"]
        for key, value in (literal.split("=", 1) for literal in entry["literals"])
    }
    assert changed.keys() >= SHARED
    kinds = [each["kind"] for each in built if each["kind"] != "ConfigMap"]
    assert sorted(kinds) == sorted(FILES[path]["kind"] for path in files)
    assert {each["metadata"]["namespace"] for each in built} == {"orders"}
    assert "name-an-image" not in str(built)
    for made in (each for each in built if each["kind"] == "ConfigMap"):
        if made["metadata"].get("labels") == {"grafana_dashboard": "1"}:
            assert json.loads(made["data"]["sea-mq-worker.json"])["panels"]
        elif "-sql-" in made["metadata"]["name"]:
            assert made["data"] == {"roles.sql": (ROOT / ROLES).read_text()}
        else:
            assert made["data"] == literals(FOLDER / ("migrate" if "migrate" in overlay else "")) | changed
            assert f"'configMapRef': {{'name': '{made['metadata']['name']}'}}" in str(built)


def test_the_job_takes_the_settings_of_the_worker() -> None:
    own = literals(FOLDER / "migrate")
    assert {key: own[key] for key in SHARED} == {key: literals()[key] for key in SHARED}
    settings = {"configMapRef": {"name": "sea-mq-worker-migrate"}}
    assert [container["envFrom"] for container in containers(PODS["migrate"])] == [[settings]] * 3


def test_the_job_grants_the_roles_as_the_script_says() -> None:
    [roles] = [container for container in containers(PODS["migrate"]) if container["name"] == "roles"]
    *command, url = roles["command"]
    schema = literals(FOLDER / "migrate")["SEA_MQ_DATABASE_SCHEMA"]
    said = shlex.join(command).replace("'schema=$(SEA_MQ_DATABASE_SCHEMA)'", f"schema={schema}")
    assert f"--   {said}\n" in (ROOT / ROLES).read_text()
    assert url == f"$({roles['env'][0]['name']})"
    assert roles["volumeMounts"][0]["mountPath"] == f"{roles['workingDir']}/{Path(ROLES).parent}"


@needs_kubectl
def test_kubectl_builds_the_pipeline(place: Path) -> None:
    folder = "sea-mq-worker/deploy/kubernetes/pipeline"
    built = yaml.safe_load_all(kubectl(f"kubectl kustomize {folder}", place).stdout)
    assert sorted(each["kind"] for each in built) == ["ConfigMap", "CronJob", "NetworkPolicy"]


@needs_kubectl
def test_kubectl_understands_every_command_of_the_document(place: Path) -> None:
    """It makes the secrets; of the rest it reads all words before it finds that nobody answers."""
    lines = [command.text for command in commands(DOCUMENT, "Kubernetes")]
    for line in " && ".join(lines).split(" && "):
        if line.startswith("kubectl create secret"):
            made = kubectl(f"{line} --dry-run=client --output=yaml", place).stdout
            kubernetes_validate.validate(yaml.safe_load(made), VERSIONS[-1], strict=True)
        else:
            done = kubectl(line, place)
            assert done.returncode == 0 or "refused" in done.stderr, done
    assert "refused" not in kubectl("kubectl rollout status deployment/d --until-done", place).stderr


@pytest.mark.fault("S16")
@pytest.mark.parametrize("name", PODS)
def test_a_pod_has_no_more_rights_than_it_needs(name: str) -> None:
    pod, user = PODS[name], re.findall(r"^USER (\d+):(\d+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    context = pod["securityContext"]
    assert (str(context["runAsUser"]), str(context["runAsGroup"])) == user[-1], "the user of the image"
    assert context["runAsNonRoot"] is True
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    for container in containers(pod):
        assert container["image"].endswith(":name-an-image-in-the-overlay"), "it exists by an overlay only"
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "memory" in container["resources"]["limits"]


def test_the_kubelet_waits_longer_than_the_worker_needs_to_stop() -> None:
    grace = float(literals()["SEA_MQ_GRACE_SECONDS"])
    assert PODS["deployment"]["terminationGracePeriodSeconds"] >= grace + 10


def test_a_new_worker_is_ready_before_an_old_one_ends() -> None:
    assert DEPLOYMENT["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert DEPLOYMENT["spec"]["minReadySeconds"] > 0
    assert DEPLOYMENT["spec"]["replicas"] > FILES["poddisruptionbudget.yaml"]["spec"]["maxUnavailable"]


def test_everything_means_the_same_pods() -> None:
    labels = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]
    assert DEPLOYMENT["spec"]["selector"]["matchLabels"] == labels
    assert FILES["poddisruptionbudget.yaml"]["spec"]["selector"]["matchLabels"] == labels
    assert FILES["networkpolicy.yaml"]["spec"]["podSelector"]["matchLabels"] == labels
    of_the_job = FILES["migrate/networkpolicy.yaml"]["spec"]["podSelector"]["matchLabels"]
    assert of_the_job == JOB["spec"]["template"]["metadata"]["labels"]
    of_maintenance = FILES["maintenance/networkpolicy.yaml"]["spec"]["podSelector"]["matchLabels"]
    assert [job["template"]["metadata"]["labels"] for job in CRON_JOBS.values()] == [of_maintenance] * 2
    of_the_pipeline = FILES["pipeline/networkpolicy.yaml"]["spec"]["podSelector"]["matchLabels"]
    assert of_the_pipeline == PIPELINE["metadata"]["labels"]
    assert FILES["service.yaml"]["spec"]["selector"] == labels
    assert FILES["monitoring/servicemonitor.yaml"]["spec"]["selector"]["matchLabels"] == labels


def test_the_settings_are_right_and_the_ports_agree() -> None:
    secrets = {"database_url": "postgresql://u@postgres/d", "nats_url": "nats://nats"}
    given = {key.removeprefix(ENV_PREFIX).lower(): value for key, value in literals().items()}
    settings = Settings.model_validate(given | secrets)
    [worker] = PODS["deployment"]["containers"]
    assert worker["ports"] == [{"name": "admin", "containerPort": settings.admin_port}]
    [mount] = worker["volumeMounts"]
    items = PODS["deployment"]["volumes"][0]["secret"]["items"]
    [token, password] = [f"{mount['mountPath']}/{item['path']}" for item in items]
    assert str(settings.admin_token_file) == token
    assert {"name": "SEA_MQ_DATABASE_PASSWORD_FILE", "value": password} in worker["env"]
    names = [entry["name"] for pod in PODS.values() for c in containers(pod) for entry in c["env"]]
    ours = {name.removeprefix(ENV_PREFIX).lower() for name in names if name.startswith(ENV_PREFIX)}
    assert ours <= Settings.model_fields.keys()


def test_the_pipeline_gets_a_lake_and_runs_a_job() -> None:
    given = literals(FOLDER / "pipeline")
    ours = {
        name.removeprefix(ENV_PREFIX).lower(): given[name] for name in given if name.startswith(ENV_PREFIX)
    }
    assert Settings.model_validate(ours).pipeline_lake.startswith("s3://")
    [container] = containers(PODS["pipeline"])
    assert refused(WORKER, ["pipeline", *container["args"]]) == ""


def test_the_operator_of_spark_takes_the_application_which_has_the_settings_and_secrets_of_the_job() -> None:
    application, folder = FILES["pipeline/cluster/sparkapplication.yaml"], FOLDER / "pipeline" / "cluster"
    schema = json.loads(gzip.decompress(OPERATORS_SCHEMA.read_bytes()))
    assert [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(application)] == []
    spec = application["spec"]
    assert refused(WORKER, spec["arguments"]) == ""
    assert spec["sparkVersion"] == re.findall(r"^pyspark==(\S+)", SPARK_LOCK.read_text(), re.MULTILINE)[0]
    assert literals(folder) == literals(FOLDER / "pipeline")
    [container] = containers(PODS["pipeline"])
    for pod in (spec["driver"], spec["executor"]):
        assert str(pod["env"]).replace("pipeline-cluster", "pipeline") == str(container["env"])
        assert [each["configMapRef"]["name"] for each in pod["envFrom"]] == ["sea-mq-pipeline-cluster"]
        assert pod["securityContext"]["runAsUser"] == PODS["pipeline"]["securityContext"]["runAsUser"]


def test_the_image_starts_what_spark_asks_for(tmp_path: Path) -> None:
    """A stub in place of Java and spark-submit prints its words."""
    for name in ("java", "spark-submit"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@"\n')
        (tmp_path / name).chmod(0o755)
    given = {f"SPARK_{name}": name for name in re.findall(r"\$SPARK_(\w+)", ENTRYPOINT.read_text())}
    own = {
        "PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "SPARK_JAVA_OPT_0": "-Da=b",
    }

    def started(*words: str) -> str:
        return subprocess.check_output([ENTRYPOINT, *words], env=os.environ | given | own, text=True)

    assert started("driver", "--master", "m", "a.py").split() == [
        *(
            "spark-submit",
            "--conf",
            "spark.driver.bindAddress=DRIVER_BIND_ADDRESS",
            "--deploy-mode",
            "client",
        ),
        *("--master", "m", "a.py"),
    ]
    executor = started("executor")
    assert executor.startswith("java -Da=b -XmsEXECUTOR_MEMORY -XmxEXECUTOR_MEMORY -cp ")
    assert "KubernetesExecutorBackend --driver-url DRIVER_URL --executor-id EXECUTOR_ID" in executor
    assert "pipeline report" in started("report", "--help")


@pytest.mark.parametrize("secret", ["sea-mq-worker", "sea-mq-worker-maintenance", "sea-mq-worker-migrate"])
def test_the_document_makes_the_secrets_that_are_read(secret: str) -> None:
    text = (ROOT / DOCUMENT).read_text()
    [made] = re.findall(rf"create secret generic {secret} \\\n((?:  --from.*\n)+)", text)
    assert set(re.findall(r"--from-\w+=([\w-]+)=", made)) == set(references(list(FILES.values()), secret))


def test_inbox_prefixes_are_those_of_the_users_of_any_context() -> None:
    """Kubernetes replaces the name of a variable that the list has before."""
    users = (ROOT / "deploy" / "nats-accounts.conf").read_text()
    for pod in PODS.values():
        container = next(one for one in containers(pod) if "SEA_MQ_NATS_URL" in str(one["env"]))
        names = [entry["name"] for entry in container["env"]]
        context, prefix = names.index("SEA_MQ_CONTEXT"), names.index("SEA_MQ_NATS_INBOX_PREFIX")
        [settings] = container["envFrom"]
        source = container["env"][context]["valueFrom"]["configMapKeyRef"]
        assert source == {"name": settings["configMapRef"]["name"], "key": "SEA_MQ_CONTEXT"}
        assert context < prefix
        assert f'"{container["env"][prefix]["value"].replace("$(SEA_MQ_CONTEXT)", "sea")}.>"' in users


def test_doctor_reaches_every_worker_and_may_read_their_reasons() -> None:
    pod = PODS["doctor"]
    [container] = pod["containers"]
    host = next(entry["value"] for entry in container["env"] if entry["name"] == "SEA_MQ_ADMIN_HOST")
    service = FILES["service.yaml"]
    assert (service["metadata"]["name"], service["spec"]["clusterIP"]) == (host, "None")
    [mount] = container["volumeMounts"]
    [item] = pod["volumes"][0]["secret"]["items"]
    assert f"{mount['mountPath']}/{item['path']}" == literals()["SEA_MQ_ADMIN_TOKEN_FILE"]
    workers, own = FILES["networkpolicy.yaml"]["spec"], FILES["maintenance/networkpolicy.yaml"]["spec"]
    port = service["spec"]["ports"][0]["port"]
    assert own["egress"][-1] == {"ports": [{"port": port}], "to": [{"podSelector": workers["podSelector"]}]}
    assert {"podSelector": own["podSelector"]} in workers["ingress"][0]["from"]
