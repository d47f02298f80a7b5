#include "core/json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/yaml.h"

namespace ring {
namespace {

constexpr std::size_t kMaxShownError = 300;  // bytes; nlohmann quotes the whole string if it is not UTF-8

// Removes "[json.exception.parse_error.101] " from an error's text, and shortens it.
std::string shortened(const std::string& what) {
  const std::size_t at = what.find("] ");
  return shown(at == std::string::npos ? what : what.substr(at + 2), kMaxShownError);
}

// Builds a value from the events of nlohmann's SAX parser, whose interface defines the names of the functions.
template <class Json>
class JsonBuilder {
 public:
  JsonBuilder(Json& root, const JsonLimits& limits) : root_(root), limits_(limits) {}

  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(typename Json::number_integer_t value) { return add(value); }
  bool number_unsigned(typename Json::number_unsigned_t value) { return add(value); }
  bool number_float(typename Json::number_float_t value, const std::string&) { return add(value); }
  bool string(std::string& value) { return add(std::move(value)); }
  bool binary(typename Json::binary_t&) { return false; }  // does not occur in JSON text

  bool start_object(std::size_t) { return open(Json::value_t::object); }
  bool key(std::string& key) {
    count_work();
    auto& object = open_.back()->template get_ref<Object&>();
    if constexpr (kOrdered) {
      static_cast<Members&>(object).emplace_back(std::move(key), nullptr);
      member_ = &object.back().second;
    } else {
      const auto [at, fresh] = object.try_emplace(std::move(key));
      if (!fresh) on_duplicate(at->first);
      member_ = &at->second;
    }
    return true;
  }
  bool end_object() {
    if constexpr (kOrdered) resolve_duplicates(open_.back()->template get_ref<Object&>());
    open_.pop_back();
    return true;
  }

  bool start_array(std::size_t) { return open(Json::value_t::array); }
  bool end_array() {
    open_.pop_back();
    return true;
  }

  [[noreturn]] bool parse_error(std::size_t, const std::string&, const typename Json::exception& e) const {
    throw Error(shortened(e.what()));
  }

 private:
  using Object = typename Json::object_t;
  static constexpr bool kOrdered = std::is_same_v<Json, nlohmann::ordered_json>;
  using Members = std::vector<std::pair<const std::string, Json>>;  // base class of ordered_json's object

  void count_work() {
    if (++work_ % kJsonWorkPerCheck == 0 && limits_.stop && limits_.stop())
      throw JsonStopped("a signal stopped the parsing of this JSON text");
  }

  template <class Value>
  Json* place(Value&& value) {
    count_work();
    if (open_.empty()) return &(root_ = Json(std::forward<Value>(value)));
    if (++entries_ > limits_.entries) fail("it has more than ", limits_.entries, " entries");
    if (open_.back()->is_object()) return &(*member_ = Json(std::forward<Value>(value)));
    auto& array = open_.back()->template get_ref<typename Json::array_t&>();
    return &array.emplace_back(std::forward<Value>(value));
  }
  template <class Value>
  bool add(Value&& value) {
    place(std::forward<Value>(value));
    return true;
  }
  bool open(typename Json::value_t type) {
    if (std::cmp_equal(open_.size(), limits_.depth)) fail("it is nested more than ", limits_.depth, " levels deep");
    open_.push_back(place(type));
    return true;
  }

  void on_duplicate(const std::string& key) const {
    if (limits_.duplicate_keys == DuplicateKeys::refused) fail("it has the key '", shown(key, 100), "' twice");
  }

  // Finds duplicate keys: sorts the members' indices by key, so that equal keys become neighbours.
  void resolve_duplicates(Members& object) {
    order_.resize(object.size());
    for (std::size_t i = 0; i < order_.size(); ++i) order_[i] = i;
    std::ranges::sort(order_, [&](std::size_t a, std::size_t b) {
      count_work();
      const int order = object[a].first.compare(object[b].first);
      return order != 0 ? order < 0 : a < b;
    });
    bool any = false;
    for (std::size_t i = 1; i < order_.size(); ++i) {
      if (object[order_[i - 1]].first != object[order_[i]].first) continue;
      any = true;
      on_duplicate(object[order_[i]].first);
    }
    if (any) keep_last_values(object);
  }

  // Moves each key's last value to the key's first member and drops its other members. Requires order_ as
  // resolve_duplicates() has sorted it.
  void keep_last_values(Members& object) const {
    std::vector<bool> dropped(object.size(), false);
    for (std::size_t first = 0, i = 1; i < order_.size(); ++i) {
      if (object[order_[first]].first != object[order_[i]].first) {
        first = i;
        continue;
      }
      object[order_[first]].second = std::move(object[order_[i]].second);
      dropped[order_[i]] = true;
    }
    Members kept;
    for (std::size_t i = 0; i < object.size(); ++i)
      if (!dropped[i]) kept.emplace_back(object[i].first, std::move(object[i].second));
    object = std::move(kept);
  }

  Json& root_;
  const JsonLimits& limits_;
  std::vector<Json*> open_;         // arrays and objects that have not ended, outermost first
  Json* member_ = nullptr;          // value of the newest key
  std::vector<std::size_t> order_;  // scratch of resolve_duplicates()
  std::size_t entries_ = 0, work_ = 0;
};

}  // namespace

template <class Json>
Json parse_json(std::string_view text, const JsonLimits& limits) {
  if (text.size() > limits.bytes) fail("expected at most ", limits.bytes, " bytes, got ", text.size());
  Json root;
  JsonBuilder<Json> builder(root, limits);
  Json::sax_parse(text, &builder);
  return root;
}

template <class Json>
Json parse_own_json(std::string_view text) {
  return parse_json<Json>(text, {.entries = text.size(), .stop = nullptr});
}

template <class Json>
std::string json_text(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

template nlohmann::json parse_json(std::string_view, const JsonLimits&);
template nlohmann::ordered_json parse_json(std::string_view, const JsonLimits&);
template nlohmann::json parse_own_json(std::string_view);
template nlohmann::ordered_json parse_own_json(std::string_view);
template std::string json_text(const nlohmann::json&, int);
template std::string json_text(const nlohmann::ordered_json&, int);

}  // namespace ring
