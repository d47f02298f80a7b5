#pragma once
// JSON fields by which other trainers mark whether a message or a record is trained on.

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace ring::chat {

struct Mark {
  const char* name;
  bool learned;  // meaning of the values 1 and true; 0 and false mean the opposite
  // True if the name is a mark in a record, too. The other names are not: they may be data of the record, e.g. its
  // loss.
  bool of_record;
};
inline constexpr Mark kMarks[] = {{"weight", true, true},       // OpenAI, Mistral, Together
                                  {"train", true, true},        // Axolotl
                                  {"training", true, true},     // Axolotl
                                  {"loss_weight", true, true},  // LLaMA-Factory
                                  {"loss_scale", true, true},   // ms-swift
                                  {"loss", true, false},        // ms-swift, XTuner
                                  {"masked", false, false},     // torchtune
                                  {"mask", false, false}};

// Returns false if a mark of the message excludes it from training. Throws Error if a mark has a value between 0 and 1,
// or if only a part of the message is excluded: by `train_detail` or by a mark in a part of its content.
bool is_learned(const nlohmann::ordered_json& message, const std::string& message_name);
// Throws Error if a mark selects this message, which is not an assistant's, for training, whole or in part.
void check_not_learned(const nlohmann::ordered_json& message, const std::string& message_name);
// Throws Error if a mark of the record excludes it from training, or has a value between 0 and 1.
void check_learned(const nlohmann::ordered_json& record);

}  // namespace ring::chat
