from svoo.app.ui.problems import Problem, bad


def test_a_refusal_has_the_form_that_clients_read() -> None:
    assert bad("too long", "prompt").as_dict() == {
        "error": {
            "message": "too long",
            "type": "invalid_request_error",
            "param": "prompt",
            "code": "invalid_value",
        }
    }
    assert Problem(503, "closing", "soon").as_dict()["error"]["type"] == "server_error"
