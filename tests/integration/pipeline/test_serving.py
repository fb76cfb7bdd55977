"""`grpo serve` with the real server: greedy replies, the system prompt and its switch; altered files are named."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from openai import OpenAI
from servers import free_port

from components.merge_lora.template import Opening, extend_template, read_templates, write_templates
from components.storage.store import open_store
from pipeline.promoting.endpoint import ask, healthy, stream

pytestmark = pytest.mark.slow

MODEL = Path(__file__).parents[3] / "configs" / "quickstart" / "model"


@pytest.fixture
def weights(tmp_path):
    folder = tmp_path / "weights"
    shutil.copytree(MODEL, folder)
    opening = Opening(messages=({"role": "system", "content": "Reply in tags."},))
    templates = {name: extend_template(text, opening) for name, text in read_templates(folder).items()}
    write_templates(folder, templates)
    store = open_store(str(tmp_path / "store"))
    return Path(store.put(folder, "merged/abc", provenance={}).uri.removeprefix("file://"))


def serve(weights, folder, *options):
    port = free_port()
    command = [sys.executable, "-m", "pipeline.cli", "serve", str(weights), "--port", str(port), *options]
    output = (folder / "output").open("w")
    process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 120
    while not healthy(url):
        assert process.poll() is None, (folder / "output").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return process, url


def test_a_folder_is_served_verified_answers_greedily_and_leaves_the_system_prompt_out_when_told(weights, tmp_path):
    process, url = serve(weights, tmp_path, "--no-system-prompt")
    try:
        assert "every byte verified, served by" in (tmp_path / "output").read_text()
        question = [
            {"role": "user", "content": "Ada has 46 coins. Ada buys 25 more. How many coins does Ada have now?"}
        ]
        first = ask(url, "abc", question, max_tokens=24)
        assert first == ask(url, "abc", question, max_tokens=24)
        assert "".join(stream(url, "abc", question, max_tokens=24, temperature=0.0)) == first.text
        assert ask(url, "abc", question, max_tokens=3).truncated
        with OpenAI(base_url=f"{url}/v1", api_key="-") as client:
            assert [model.id for model in client.models.list()] == ["abc"]
            lengths = []
            for switched in ({}, {"default_system": True}, {"default_system": False}):
                reply = client.chat.completions.create(
                    model="abc", messages=question, max_tokens=1, extra_body={"chat_template_kwargs": switched}
                )
                lengths.append(reply.usage.prompt_tokens)
        assert lengths[0] == lengths[2] < lengths[1]
    finally:
        process.terminate()
        process.wait(30)


def test_an_altered_file_is_refused_by_name(weights, tmp_path):
    config = json.loads((weights / "config.json").read_text())
    (weights / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    command = [sys.executable, "-m", "pipeline.cli", "serve", str(weights)]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert "config.json" in result.stderr
    assert "Traceback" not in result.stderr
