import pytest

from sea_mq_worker.runtime.addresses import is_metadata_host


@pytest.mark.fault("S08")
@pytest.mark.parametrize(
    "host",
    [
        *("169.254.169.254", "169.254.0.1", "fe80::1", "fe80::1%eth0", "::ffff:169.254.169.254"),
        *("64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "::a9fe:a9fe", "64:ff9b:1::a9fe:a9fe"),
        *("64:ff9b:1:a9fe:a9:fe00::", "64:ff9b:1:a9:fe:a9fe::", "64:ff9b:1:0:a9:fea9:fe00::"),
        *("2001:0:4136:e378:8000:63bf:5601:5601", "2001:0:a9fe:a9fe:8000:63bf:ffff:ffff"),
        *("2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.254.43518", "METADATA.google.internal."),
        *("fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "168.63.129.16", "192.0.0.192"),
        *("metadata.goog", "instance-data", "instance-data.ec2.internal"),
    ],
)
def test_link_local_and_metadata_services_are_known_in_every_notation(host: str) -> None:
    assert is_metadata_host(host)


@pytest.mark.parametrize(
    "host",
    [
        *("", "127.0.0.1", "localhost", "::1", "10.0.0.7", "169.253.0.1", "handler", "metadata", "a\0b"),
        *("::", "::10.0.0.7", "64:ff9b::10.0.0.7", "64:ff9b:1::10.0.0.7"),
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    ],
)
def test_everything_else_may_be_a_handler(host: str) -> None:
    assert not is_metadata_host(host)
