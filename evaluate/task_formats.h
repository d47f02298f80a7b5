#pragma once
// Record formats in which tasks are published, and the prompts that lm-evaluation-harness 0.4 makes of them.
//
//   hellaswag  {"activity_label", "ctx_a", "ctx_b", "endings", "label"}   Zellers et al. 2019
//   arc        {"question", "choices", "answerKey"}   Clark et al. 2018, as published and on the hub
//   mmlu       {"question", "choices", "answer", "subject"}   Hendrycks et al. 2021, as on the hub
//   lambada    {"text"}; the last word is the answer                        Paperno et al. 2016
//   plain      {"context", "choices", "answer"}

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace ring {

struct TaskItem {
  std::string context;
  std::vector<std::string> choices;  // without the space between context and choice
  std::size_t answer = 0;
};

// Returns the format of a record. Throws Error, with `where` at the start of the message, if the format is unknown.
std::string task_format_of(const nlohmann::ordered_json& record, const std::string& where);

// Throws Error, with `where` at the start, if a member is missing or has the wrong type, or if no choice is correct.
TaskItem parse_task_item(const std::string& format, const nlohmann::ordered_json& record, const std::string& where);

}  // namespace ring
