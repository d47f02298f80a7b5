#include "checkpoint/manifest.h"

#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "checkpoint/files.h"

namespace ring {
namespace {

using nlohmann::json;

constexpr const char* kFormat = "ringmaster-checkpoint";
constexpr int kVersion = 1;

json to_json(const Shape& shape) { return json(std::vector<std::int64_t>(shape.begin(), shape.end())); }

Shape shape_from(const json& j) {
  Shape shape;
  for (const json& d : j) {
    shape.push_back(d.get<std::int64_t>());
    if (shape[shape.size() - 1] < 0) fail("negative number in ", j.dump());
  }
  return shape;
}

// JSON has no infinity or NaN, and hexadecimal keeps every bit: doubles travel as text such as 0x1.8p+1.
json to_json(const StateValue& value) {
  if (const auto* i = std::get_if<std::int64_t>(&value)) return {{"i64", *i}};
  if (const auto* u = std::get_if<std::uint64_t>(&value)) return {{"u64", *u}};
  if (const auto* s = std::get_if<std::string>(&value)) return {{"string", *s}};
  char text[64];
  std::snprintf(text, sizeof text, "%a", std::get<double>(value));
  return {{"f64", text}};
}

StateValue value_from(const json& j) {
  if (j.contains("i64")) return j.at("i64").get<std::int64_t>();
  if (j.contains("u64")) return j.at("u64").get<std::uint64_t>();
  if (j.contains("string")) return j.at("string").get<std::string>();
  const std::string text = j.at("f64").get<std::string>();
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0') fail("'", text, "' is not a number");
  return value;
}

json to_json(const SavedTensor& t) {
  json slices = json::array();
  for (const SavedSlice& s : t.slices)
    slices.push_back({{"start", to_json(s.box.start)},
                      {"size", to_json(s.box.size)},
                      {"file", s.file},
                      {"offset", s.offset},
                      {"bytes", s.bytes},
                      {"xxh3", s.xxh3}});
  return {{"dtype", std::string(to_string(t.dtype))}, {"shape", to_json(t.global_shape)}, {"slices", slices}};
}

SavedTensor tensor_from(const json& j) {
  SavedTensor t;
  t.dtype = parse_dtype(j.at("dtype").get<std::string>());
  t.global_shape = shape_from(j.at("shape"));
  for (const json& s : j.at("slices"))
    t.slices.push_back({{shape_from(s.at("start")), shape_from(s.at("size"))},
                        s.at("file").get<std::string>(),
                        s.at("offset").get<std::uint64_t>(),
                        s.at("bytes").get<std::uint64_t>(),
                        s.at("xxh3").get<std::string>()});
  return t;
}

std::string hash_suffix(const std::string& body) { return str(" \"xxh3\": \"", hash_of(body), "\"\n}\n"); }

// One line for each entry: readable, and small beside the default of one line for each number.
template <class Map>
void write_entries(std::ostream& out, const char* key, const Map& entries) {
  out << " \"" << key << "\": {";
  const char* comma = "\n";
  for (const auto& [name, entry] : entries) {
    out << comma << "  " << json(name).dump() << ": " << to_json(entry).dump();
    comma = ",\n";
  }
  out << "\n },\n";
}

std::set<std::string> check_files(const Manifest& m, std::map<std::string, std::uint64_t>& sizes) {
  std::set<std::string> names;
  for (const SavedFile& f : m.files) {
    if (f.name.empty() || f.name.find('/') != std::string::npos || f.name == "." || f.name == ".." ||
        f.name == kManifestName)
      fail("'", f.name, "' is not the name of a shard");
    if (!names.insert(f.name).second) fail("file '", f.name, "' is listed twice");
    sizes[f.name] = f.bytes;
  }
  return names;
}

void check_parts(const Manifest& m) {
  std::map<std::string, std::uint64_t> sizes;
  check_files(m, sizes);
  for (const auto& [name, t] : m.tensors) {
    check_cover(name, t);
    for (const SavedSlice& s : t.slices) {
      const auto file = sizes.find(s.file);
      if (file == sizes.end()) fail("tensor '", name, "' lies in '", s.file, "', which is not listed");
      if (s.bytes != static_cast<std::uint64_t>(s.box.numel()) * size_of(t.dtype))
        fail("tensor '", name, "': ", s.bytes, " bytes for a slice of ", t.dtype, s.box.size);
      if (s.offset > file->second || s.bytes > file->second - s.offset)
        fail("tensor '", name, "' ends at byte ", s.offset, " + ", s.bytes, " of '", s.file, "', which has ",
             file->second);
    }
  }
}

Manifest from_json(const json& j) {
  if (j.at("format") != kFormat) fail("format is ", j.at("format").dump(), ", expected \"", kFormat, "\"");
  if (j.at("version") != kVersion)
    fail("version is ", j.at("version").dump(), ", this program reads version ", kVersion);
  Manifest m;
  m.step = j.at("step").get<std::int64_t>();
  m.world = j.at("layout").at("world").get<int>();
  if (!j.at("metadata").is_object()) fail("metadata is ", j.at("metadata").dump(), ", expected a JSON object");
  m.metadata = j.at("metadata").dump();
  for (const auto& [name, value] : j.at("values").items()) m.values.emplace(name, value_from(value));
  for (const auto& [name, f] : j.at("files").items())
    m.files.push_back({name, f.at("bytes").get<std::uint64_t>(), f.at("xxh3").get<std::string>()});
  for (const auto& [name, t] : j.at("tensors").items()) m.tensors.emplace(name, tensor_from(t));
  check_parts(m);
  return m;
}

}  // namespace

std::uint64_t Manifest::tensor_bytes() const {
  std::uint64_t total = 0;
  for (const auto& [name, t] : tensors)
    for (const SavedSlice& s : t.slices) total += s.bytes;
  return total;
}

void check_cover(const std::string& name, const SavedTensor& t) {
  std::int64_t covered = 0;
  for (std::size_t i = 0; i < t.slices.size(); ++i) {
    const Box& box = t.slices[i].box;
    if (box.start.size() != t.global_shape.size() || box.size.size() != t.global_shape.size())
      fail("tensor '", name, "' of shape ", t.global_shape, " has a slice ", box.size, " at ", box.start);
    for (int d = 0; d < box.size.size(); ++d)
      if (box.size[d] > t.global_shape[d] || box.start[d] > t.global_shape[d] - box.size[d])
        fail("tensor '", name, "': slice ", box.size, " at ", box.start, " leaves the shape ", t.global_shape);
    for (std::size_t k = 0; k < i; ++k)
      if (intersect(box, t.slices[k].box).numel() != 0)
        fail("tensor '", name, "': slices ", t.slices[k].box.size, " at ", t.slices[k].box.start, " and ", box.size,
             " at ", box.start, " overlap");
    covered += box.numel();
  }
  if (covered != t.global_shape.numel())
    fail("tensor '", name, "' of shape ", t.global_shape, " has ", t.global_shape.numel(),
         " elements, its slices hold ", covered);
}

std::string to_text(const Manifest& m) {
  std::ostringstream out;
  std::map<std::string, json> files;
  for (const SavedFile& f : m.files) files[f.name] = {{"bytes", f.bytes}, {"xxh3", f.xxh3}};
  try {
    out << "{\n \"format\": \"" << kFormat << "\",\n \"version\": " << kVersion << ",\n \"step\": " << m.step
        << ",\n \"layout\": {\"world\": " << m.world << "},\n \"metadata\": " << json::parse(m.metadata).dump()
        << ",\n";
    write_entries(out, "values", m.values);
    out << " \"files\": {";
    const char* comma = "\n";
    for (const auto& [name, f] : files)
      out << std::exchange(comma, ",\n") << "  " << json(name).dump() << ": " << f.dump();
    out << "\n },\n";
    write_entries(out, "tensors", m.tensors);
  } catch (const json::exception& e) {
    fail("the manifest cannot be written as JSON: ", e.what());
  }
  const std::string body = out.str();
  return body + hash_suffix(body);
}

Manifest parse_manifest(const std::string& text) {
  const std::size_t tail = hash_suffix("").size();
  if (text.size() < tail) fail("is cut short: ", text.size(), " bytes");
  const std::string body = text.substr(0, text.size() - tail);
  if (text.substr(body.size()) != hash_suffix(body))
    fail("is damaged or not a manifest: its last line is not its hash");
  try {
    return from_json(json::parse(text));
  } catch (const json::exception& e) {
    fail("is not a manifest that this program reads: ", e.what());
  }
}

Manifest read_manifest(const std::filesystem::path& checkpoint) {
  const std::filesystem::path path = checkpoint / kManifestName;
  if (!std::filesystem::exists(path)) fail(path.string(), " is missing");
  const std::string text = read_text(path);
  try {
    return parse_manifest(text);
  } catch (const Error& e) {
    fail(path.string(), " ", e.what());
  }
}

std::string value_to_text(const std::string& name, const StateValue& value) {
  try {
    return to_json(value).dump();
  } catch (const json::exception&) {
    fail("state '", name, "' is a string that is not UTF-8: put bytes into a u8 tensor");
  }
}

}  // namespace ring
