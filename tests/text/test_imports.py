import subprocess
import sys


def test_encoding_text_does_not_wait_for_torch() -> None:
    code = (
        "import sys; import datapipe.text.truncate, datapipe.plan.lengths;"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
