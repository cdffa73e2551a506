// Chat templates, against what Jinja 3.1 renders with the settings of Hugging Face's apply_chat_template().
#include "trireme/serve/chat/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/http/message.h"

namespace trireme::serve::chat {
namespace {

using testing::HasSubstr;

Value four_messages() {
  return Value::array({{{"role", "system"}, {"content", " Be brief. "}},
                       {{"role", "user"}, {"content", "Hi é"}},
                       {{"role", "assistant"}, {"content", "Yes?\n"}},
                       {{"role", "user"}, {"content", "2+2"}}});
}

std::string rendered(std::string_view source, Value messages = four_messages()) {
  return ChatTemplate(source, "a test")
      .render({.messages = std::move(messages), .bos_token = "<s>", .eos_token = "</s>"});
}

struct TemplateCase {
  const char *name, *source, *expected;
};
// clang-format off
const TemplateCase kTemplateCases[] = {
    {"chatml",
     R"~({% for message in messages %}
    {% if loop.first and message['role'] != 'system' %}
<|im_start|>system
You help.<|im_end|>
    {% endif %}
    {{- '<|im_start|>' + message['role'] + '\n' + message['content'] | trim + '<|im_end|>' }}

{% endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
)~",
     R"~(<|im_start|>system
Be brief.<|im_end|>

<|im_start|>user
Hi é<|im_end|>

<|im_start|>assistant
Yes?<|im_end|>

<|im_start|>user
2+2<|im_end|>

<|im_start|>assistant
)~"},
    {"llama2",
     R"~({% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}{% set rest = messages[1:] %}{% else %}{% set system = false %}{% set rest = messages %}{% endif %}{% for m in rest %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}{% if loop.index0 == 0 and system is not false %}{% set content = '<<SYS>>\n' ~ system ~ '\n<</SYS>>\n\n' ~ m['content'] %}{% else %}{% set content = m['content'] %}{% endif %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif m.role == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %})~",
     R"~(<s>[INST] <<SYS>>
 Be brief. 
<</SYS>>

Hi é [/INST] Yes? </s><s>[INST] 2+2 [/INST])~"},
    {"namespace",
     R"~({%- set ns = namespace(found=false, count=0) -%}
{%- for m in messages if m.role != 'system' -%}
  {%- set ns.count = ns.count + 1 -%}
  {%- if not ns.found and 'Hi' in m.content -%}
    {%- set ns.found = true -%}
    [{{ loop.index }}/{{ loop.length }}]
  {%- endif -%}
{%- endfor -%}
{{ ns.found }} {{ ns.count }} {{ messages | length }} {{ messages[-1].role | upper }} {{ (messages | last).content }})~",
     R"~([1/3]True 3 4 USER 2+2)~"},
    {"expr",
     R"~({{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 * 3 + 4 }} {{ 'a' if undefined_name is defined else 'b' }} {{ undefined_name | default('d') }} {{ [1, 'x', none, true] }} {{ {'k': 1.5} }} {{ {'a': [1, {'b': 'cé'}]} | tojson }} {{ 'x,y'.split(',') }} {{ ['p', 'q'] | join('-') }} {{ 1 < 2 and not 3 <= 2 or false }} {{ 'b' not in 'abc' }} {{ messages[1:3] | length }} {{ 'abc'[1:] }} {{ messages[::-1][0].content }} {{ 'aXbX'.replace('X', '1') | capitalize }} {{ none is none }} {{ 3 is odd }}{# comment #}
{%- for k, v in {'one': 1, 'two': 2}.items() %} {{ k }}={{ v }}{% if not loop.last %};{% endif %}{% endfor %}
{% for x in [] %}never{% else %} empty{% endfor %} {{ range(3) | list }} {{ 'Up'.lower() ~ 1 }})~",
     R"~(3 -4 2 3.5 10 b d [1, 'x', None, True] {'k': 1.5} {"a": [1, {"b": "cé"}]} ['x', 'y'] p-q True False 2 bc 2+2 A1b1 True True one=1; two=2 empty [0, 1, 2] up1)~"},
};
// clang-format on

TEST(ChatTemplate, RendersWhatJinjaDoes) {
  for (const TemplateCase& each : kTemplateCases) EXPECT_EQ(rendered(each.source), each.expected) << each.name;
}

TEST(ChatTemplate, RefusesByNameWhatItDoesNotKnow) {
  const auto refusal = [](std::string_view source) {
    try {
      rendered(source);
    } catch (const Error& error) {
      return error.message();
    }
    return std::string("it was taken");
  };
  EXPECT_THAT(refusal("a\n{% macro f(x) %}{% endmacro %}"),
              HasSubstr("line 2 of the chat template: the statement {% macro %} is not supported"));
  EXPECT_THAT(refusal("{% include 'x' %}"), HasSubstr("{% include %}"));
  EXPECT_THAT(refusal("{{ messages | groupby('role') }}"), HasSubstr("the filter groupby is not supported"));
  EXPECT_THAT(refusal("{{ 1 is divisibleby(3) }}"), HasSubstr("the test divisibleby is not supported"));
  EXPECT_THAT(refusal("{{ 'a'.encode() }}"), HasSubstr("the method .encode() is not supported"));
  EXPECT_THAT(refusal("{{ strftime_now('%d') }}"), HasSubstr("the function strftime_now() is not supported"));
  EXPECT_THAT(refusal("{% if true %}"), HasSubstr("endif"));
  EXPECT_THAT(refusal("{% endfor %}"), HasSubstr("ends what was not begun"));
  EXPECT_THAT(refusal("{{ 1 + }}"), HasSubstr("a value is expected"));
  EXPECT_THAT(refusal("{{ 'a' + 1 }}"), HasSubstr("cannot be computed"));
  EXPECT_THAT(refusal("{{ messages.missing.deeper }}"), HasSubstr("undefined"));
  EXPECT_THAT(refusal("{{ 1 // 0 }}"), HasSubstr("division by 0"));
  EXPECT_THAT(refusal("{{ 'open"), HasSubstr("does not end"));
  EXPECT_THAT(refusal(std::string(500, '(')), testing::AnyOf(HasSubstr("taken"), HasSubstr("nested")));
  EXPECT_THAT(refusal("{{ " + std::string(500, '(') + "1" + std::string(500, ')') + " }}"), HasSubstr("nested deeper"));
  EXPECT_THAT(refusal("{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}"),
              testing::AnyOf(HasSubstr("steps"), HasSubstr("16 MiB")));
}

TEST(ChatTemplate, WhatATemplateRaisesIsTheClientsMistake) {
  try {
    rendered("{{ raise_exception('roles must alternate') }}");
    FAIL();
  } catch (const http::HttpError& error) {
    EXPECT_EQ(error.status(), 400);
    EXPECT_THAT(error.message(), HasSubstr("roles must alternate"));
  }
}

}  // namespace
}  // namespace trireme::serve::chat
