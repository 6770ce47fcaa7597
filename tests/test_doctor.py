from svoo.backends import BACKENDS
from svoo.doctor import examine


def test_every_backend_and_package_has_a_line() -> None:
    findings = {finding.name: finding for finding in examine()}
    for backend in BACKENDS:
        assert findings[f"backend {backend.name}"].text
    assert findings["diffusers"].good
    assert "threads" in findings["device"].text or findings["device"].text
    assert findings["torch"].text
