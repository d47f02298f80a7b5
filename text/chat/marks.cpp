#include "text/chat/marks.h"

#include <nlohmann/json.hpp>

#include "core/check.h"
#include "core/json.h"

namespace ring::chat {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Returns the mark's name if it excludes `object` from training, else "". Null counts as missing.
std::string unlearned_by(const Mark& mark, const OrderedJson& object, const std::string& which) {
  const auto value = object.find(mark.name);
  if (value == object.end() || value->is_null()) return "";
  const bool on = *value == 1 || *value == true, off = *value == 0 || *value == false;
  if (!on && !off)
    fail(which, ": expected 0, 1, true or false in '", mark.name, "', got ", ring::json_text(*value),
         ". A token counts fully or not at all");
  return on == mark.learned ? "" : mark.name;
}

std::string unlearned(const OrderedJson& object, const std::string& which) {
  std::string by;
  for (const Mark& mark : kMarks)
    if (const std::string name = unlearned_by(mark, object, which); by.empty()) by = name;
  return by;
}

constexpr const char* kWhole =
    ", but only whole messages can be selected or excluded. Mark the whole message with 'train'";

void check_parts(const OrderedJson& message, const std::string& which) {
  const auto detail = message.find("train_detail");
  if (detail != message.end() && !detail->empty())
    fail(which, ": 'train_detail' selects parts of its text for training", kWhole);
  const auto content = message.find("content");
  if (content == message.end() || !content->is_array()) return;
  for (const OrderedJson& part : *content)
    if (const std::string by = unlearned(part, which); !by.empty())
      fail(which, ": '", by, "' excludes a part of its 'content' from training", kWhole);
}

}  // namespace

bool is_learned(const OrderedJson& message, const std::string& which) {
  check_parts(message, which);
  return unlearned(message, which).empty();
}

void check_not_learned(const OrderedJson& message, const std::string& which) {
  check_parts(message, which);
  for (const Mark& mark : kMarks) {
    const auto value = message.find(mark.name);
    if (value == message.end() || value->is_null() || !unlearned_by(mark, message, which).empty()) continue;
    fail(which, ": '", mark.name, "': ", ring::json_text(*value), " selects a message of the role ",
         ring::json_text(message.at("role")),
         " for training, but only assistant messages are learned. Remove the mark");
  }
}

void check_learned(const OrderedJson& record) {
  for (const Mark& mark : kMarks)
    if (mark.of_record && !unlearned_by(mark, record, "the record").empty())
      fail("'", mark.name, "': ", record.at(mark.name).dump(), " excludes the whole record from training");
}

}  // namespace ring::chat
