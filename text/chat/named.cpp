// The built-in chat templates, in our own formulation; each marks the assistant's text with {% generation %}.
#include <algorithm>
#include <array>

#include "text/chat/format.h"

namespace ring::chat {
namespace {

struct Named {
  const char *name, *source;
};

constexpr std::array<Named, 5> kNamed{{
    {"chatml", R"({%- for message in messages %}
  {{- '<|im_start|>' ~ message.role ~ '\n' }}
  {%- if message.role == 'assistant' %}
    {%- generation %}{{ message.content ~ '<|im_end|>' }}{% endgeneration %}
  {%- else %}
    {{- message.content ~ '<|im_end|>' }}
  {%- endif %}
  {{- '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
)"},
    {"llama2", R"({%- set ns = namespace(system='') %}
{%- for message in messages %}
  {%- if message.role == 'system' and loop.first %}
    {%- set ns.system = '<<SYS>>\n' ~ message.content ~ '\n<</SYS>>\n\n' %}
  {%- elif message.role == 'user' %}
    {{- bos_token ~ '[INST] ' ~ (ns.system ~ message.content).strip() ~ ' [/INST]' }}
    {%- set ns.system = '' %}
  {%- elif message.role == 'assistant' %}
    {%- generation %}{{ ' ' ~ message.content.strip() ~ ' ' ~ eos_token }}{% endgeneration %}
  {%- else %}
    {{- raise_exception("llama2 writes a first system message, users and assistants, no '" ~ message.role ~ "'") }}
  {%- endif %}
{%- endfor %}
)"},
    {"llama3", R"({{- bos_token }}
{%- for message in messages %}
  {{- '<|start_header_id|>' ~ message.role ~ '<|end_header_id|>\n\n' }}
  {%- if message.role == 'assistant' %}
    {%- generation %}{{ message.content.strip() ~ '<|eot_id|>' }}{% endgeneration %}
  {%- else %}
    {{- message.content.strip() ~ '<|eot_id|>' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}
)"},
    {"mistral", R"({%- set ns = namespace(system='') %}
{{- bos_token }}
{%- for message in messages %}
  {%- if message.role == 'system' and loop.first %}
    {%- set ns.system = message.content ~ '\n\n' %}
  {%- elif message.role == 'user' %}
    {{- '[INST] ' ~ ns.system ~ message.content ~ '[/INST]' }}
    {%- set ns.system = '' %}
  {%- elif message.role == 'assistant' %}
    {%- generation %}{{ ' ' ~ message.content.strip() ~ eos_token }}{% endgeneration %}
  {%- else %}
    {{- raise_exception("mistral writes a first system message, users and assistants, no '" ~ message.role ~ "'") }}
  {%- endif %}
{%- endfor %}
)"},
    {"plain", R"({%- for message in messages %}
  {{- '### ' ~ message.role ~ '\n' }}
  {%- if message.role == 'assistant' %}
    {%- generation %}{{ message.content ~ (eos_token if eos_token else '\n\n') }}{% endgeneration %}
    {{- '\n\n' if eos_token else '' }}
  {%- else %}
    {{- message.content ~ '\n\n' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '### assistant\n' }}{% endif %}
)"},
}};

}  // namespace

const char* named_template(const std::string& name) {
  const auto found = std::ranges::find_if(kNamed, [&](const Named& n) { return name == n.name; });
  return found == kNamed.end() ? nullptr : found->source;
}

std::string template_names() {
  std::string all;
  for (const Named& n : kNamed) all += (all.empty() ? "" : ", ") + std::string(n.name);
  return all;
}

}  // namespace ring::chat
