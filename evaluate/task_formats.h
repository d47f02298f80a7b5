#pragma once
// The records that tasks are published as, and the texts that lm-evaluation-harness 0.4 makes of them.
//
//   hellaswag  {"activity_label", "ctx_a", "ctx_b", "endings", "label"}   Zellers et al. 2019
//   arc        {"question", "choices", "answerKey"}   Clark et al. 2018, as published and on the hub
//   mmlu       {"question", "choices", "answer", "subject"}   Hendrycks et al. 2021, as on the hub
//   lambada    {"text"}                                                   Paperno et al. 2016: its last word
//   plain      {"context", "choices", "answer"}

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace ring {

struct TaskItem {
  std::string context;
  std::vector<std::string> choices;  // without the blank that stands between the context and them
  std::size_t answer = 0;
};

// The name of the format that a record has. Error, which begins with `where`: none.
std::string format_of(const nlohmann::ordered_json& record, const std::string& where);

// Error, which begins with `where`: a member is missing or of another type, or no choice is the right one.
TaskItem item_of(const std::string& format, const nlohmann::ordered_json& record, const std::string& where);

}  // namespace ring
