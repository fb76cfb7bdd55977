"""The default system prompt in front of arbitrary chat templates, rendered as transformers renders them."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2.exceptions import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from components.merge_lora.template import Opening, extend_template, read_templates, write_templates

QWEN = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' }}
    {%- endif %}
    {{- "# Tools" }}{% for tool in tools %}{{ tool }}{% endfor %}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant") %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
    "{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('must alternate') }}{% endif %}"
    "{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>' + system_message + '<</SYS>>' "
    "+ message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% for message in messages %}{{ '<start_of_turn>' + message['role'] + '\n' + message['content'] | trim "
    "+ '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
)
MACRO = (
    "{% macro show(i) %}[{{ messages[i].role }}:{{ messages[i].content }} of {{ messages|length }}]{% endmacro %}"
    "{% for message in messages %}{{ show(loop.index0) }}{% endfor %}"
)
SPACED = "\n\n   {% if messages %}\n  first line{% endif %}\n{{ messages | map(attribute='content') | join(',') }}\n"
TEMPLATES = {"qwen": QWEN, "llama2": LLAMA2, "macro": MACRO, "spaced": SPACED}

PROMPT = 'Reply as "<answer>{{n}}</answer>":\n{% raw %}\\n {# no #} it\'s é 😀\u2028\t</s>'
OPENING = Opening(messages=({"role": "system", "content": PROMPT},))
USER = [{"role": "user", "content": "2 + 2?"}]
TURNS = [*USER, {"role": "assistant", "content": "4"}, {"role": "user", "content": "3 + 3?"}]
SYSTEM = [{"role": "system", "content": "Mine."}]


def render(template: str, messages: Any, **options: Any) -> str:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment.globals["raise_exception"] = refuse
    options = {"bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": True} | options
    return environment.from_string(template).render(messages=messages, **options)


@pytest.mark.parametrize("name", list(TEMPLATES))
@pytest.mark.parametrize("messages", [USER, TURNS])
def test_conversation_without_system_message_gets_the_contracts(name: str, messages: list[dict[str, str]]) -> None:
    template = TEMPLATES[name]
    extended = extend_template(template, OPENING)
    assert render(extended, messages) == render(template, [*OPENING.messages, *messages])
    assert PROMPT in render(extended, messages)
    assert "You are Qwen" not in render(extended, messages)


@pytest.mark.parametrize("name", list(TEMPLATES))
@pytest.mark.parametrize("messages", [SYSTEM + USER, SYSTEM + TURNS])
def test_conversation_with_its_own_system_message_renders_as_before(name: str, messages: list[dict[str, str]]) -> None:
    template = TEMPLATES[name]
    assert render(extend_template(template, OPENING), messages) == render(template, messages)


@pytest.mark.parametrize("name", list(TEMPLATES))
def test_default_can_be_switched_off(name: str) -> None:
    template = TEMPLATES[name]
    assert render(extend_template(template, OPENING), USER, default_system=False) == render(template, USER)
    assert render(extend_template(template, OPENING), USER, default_system=True) != render(template, USER)


def test_developer_message_counts_as_a_system_message() -> None:
    messages = [{"role": "developer", "content": "Mine."}, *USER]
    assert PROMPT not in render(extend_template(MACRO, OPENING), messages)


def test_default_reaches_requests_with_tools() -> None:
    extended = extend_template(QWEN, OPENING)
    assert PROMPT in render(extended, USER, tools=["adder"])
    assert render(extended, SYSTEM + USER, tools=["adder"]) == render(QWEN, SYSTEM + USER, tools=["adder"])


def test_conversation_given_as_a_tuple_is_extended() -> None:
    assert PROMPT in render(extend_template(MACRO, OPENING), tuple(USER))


def test_opening_of_several_messages_is_inserted_whole() -> None:
    opening = Opening.of([*SYSTEM, *TURNS], "3 + 3?")
    assert render(extend_template(MACRO, opening), [TURNS[-1]]) == render(MACRO, SYSTEM + TURNS)


def test_prefix_goes_into_the_first_user_message_once() -> None:
    asked = [{"role": "user", "content": PROMPT + "\n\n2 + 2?"}]
    opening = Opening.of(asked, "2 + 2?")
    extended = extend_template(GEMMA, opening)
    assert opening.messages == ()
    assert render(extended, USER) == render(GEMMA, asked)
    assert render(extended, asked) == render(GEMMA, asked)
    assert render(extended, TURNS) == render(GEMMA, asked + TURNS[1:])
    assert render(extended, USER, default_system=False) == render(GEMMA, USER)


def test_contract_without_a_system_prompt_leaves_the_template_alone() -> None:
    assert extend_template(QWEN, Opening.of(USER, "2 + 2?")) == QWEN


@given(st.text())
def test_any_system_prompt_survives_quoting(prompt: str) -> None:
    opening = Opening(messages=({"role": "system", "content": prompt},))
    rendered = render(extend_template("{{ messages[0].content }}", opening), USER)
    assert rendered == prompt


def test_templates_are_read_from_where_transformers_finds_them(tmp_path: Path) -> None:
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": "A"}))
    assert read_templates(tmp_path) == {"default": "A"}
    config.write_text(json.dumps({"chat_template": [{"name": "default", "template": "B"}]}))
    assert read_templates(tmp_path) == {"default": "B"}
    (tmp_path / "chat_template.jinja").write_text("C")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("D")
    assert read_templates(tmp_path) == {"default": "C", "rag": "D"}


def test_templates_are_written_where_they_stood(tmp_path: Path) -> None:
    config = tmp_path / "tokenizer_config.json"
    entries = [{"name": "default", "template": "A"}, {"name": "rag", "template": "B"}]
    config.write_text(json.dumps({"eos_token": "é", "chat_template": entries}))
    write_templates(tmp_path, {"default": "A2", "rag": "B2"})
    assert read_templates(tmp_path) == {"default": "A2", "rag": "B2"}
    assert json.loads(config.read_text())["eos_token"] == "é"
    assert not (tmp_path / "chat_template.jinja").exists()

    (tmp_path / "chat_template.jinja").write_text("A2")
    write_templates(tmp_path, {"default": "A3"})
    assert read_templates(tmp_path) == {"default": "A3"}
