#include "checkpoint/manifest.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "checkpoint/files.h"
#include "core/check.h"
#include "core/json.h"
#include "core/yaml.h"

namespace ring {
namespace {

using nlohmann::json;

constexpr const char* kFormat = "ringmaster-checkpoint";
constexpr int kVersion = 1;
constexpr std::int64_t kMaxStep = 999'999'999'999'999'999;  // largest step that fits into a checkpoint's name
constexpr int kMaxDepth = 32;  // maximum nesting of arrays and objects; this writer uses 6 levels

json to_json(const Shape& shape) { return json(std::vector<std::int64_t>(shape.begin(), shape.end())); }

// Rejects everything that the JSON library would silently convert: fractions, booleans, numbers out of range.
template <class T>
T whole_number(const json& j) {
  if (j.is_number_unsigned() && std::in_range<T>(j.get<std::uint64_t>())) return static_cast<T>(j.get<std::uint64_t>());
  if (j.is_number_integer() && !j.is_number_unsigned() && std::in_range<T>(j.get<std::int64_t>()))
    return static_cast<T>(j.get<std::int64_t>());
  fail("expected a whole number from ", std::numeric_limits<T>::min(), " to ", std::numeric_limits<T>::max(), ", got ",
       shown(j.dump()));
}

Shape checked_shape(const json& j) {
  Shape shape;
  if (!j.is_array()) fail("expected a list of numbers, got ", shown(j.dump()));
  for (const json& d : j) {
    shape.push_back(whole_number<std::int64_t>(d));
    if (shape[shape.size() - 1] < 0) fail("expected numbers of at least 0, got ", shown(j.dump()));
  }
  return shape;
}

const json& section(const json& j, const char* key) {
  const json& found = j.at(key);
  if (!found.is_object()) fail(key, " is ", shown(found.dump()), ", expected a JSON object");
  return found;
}

// Writes doubles as strings such as "0x1.8p+1": JSON has no infinity and no NaN, and hexadecimal preserves every bit.
json to_json(const StateValue& value) {
  if (const auto* i = std::get_if<std::int64_t>(&value)) return {{"i64", *i}};
  if (const auto* u = std::get_if<std::uint64_t>(&value)) return {{"u64", *u}};
  if (const auto* s = std::get_if<std::string>(&value)) return {{"string", *s}};
  char text[64];
  std::snprintf(text, sizeof text, "%a", std::get<double>(value));
  return {{"f64", text}};
}

StateValue value_from(const json& j) {
  if (j.contains("i64")) return whole_number<std::int64_t>(j.at("i64"));
  if (j.contains("u64")) return whole_number<std::uint64_t>(j.at("u64"));
  if (j.contains("string")) return j.at("string").get<std::string>();
  const std::string text = j.at("f64").get<std::string>();
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0') fail("'", shown(text), "' is not a number");
  return value;
}

json to_json(const SavedTensor& t) {
  json slices = json::array();
  for (const SavedSlice& s : t.slices)
    slices.push_back({{"start", to_json(s.region.start)},
                      {"size", to_json(s.region.size)},
                      {"file", s.file},
                      {"offset", s.offset},
                      {"bytes", s.bytes},
                      {"xxh3", s.xxh3}});
  return {{"dtype", std::string(to_string(t.dtype))}, {"shape", to_json(t.global_shape)}, {"slices", slices}};
}

SavedTensor tensor_from(const json& j) {
  SavedTensor t;
  t.dtype = parse_dtype(j.at("dtype").get<std::string>());
  t.global_shape = checked_shape(j.at("shape"));
  for (const json& s : j.at("slices"))
    t.slices.push_back({{checked_shape(s.at("start")), checked_shape(s.at("size"))},
                        s.at("file").get<std::string>(),
                        whole_number<std::uint64_t>(s.at("offset")),
                        whole_number<std::uint64_t>(s.at("bytes")),
                        s.at("xxh3").get<std::string>()});
  return t;
}

std::string hash_suffix(const std::string& body) { return str(" \"xxh3\": \"", hash_of(body), "\"\n}\n"); }

// Writes one line per entry, which is readable and compact; the JSON library would write one line per number.
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

// Checks the names of the files. Returns the size of each file by name, in bytes.
std::map<std::string, std::uint64_t> check_files(const Manifest& m) {
  std::map<std::string, std::uint64_t> sizes;
  for (const SavedFile& f : m.files) {
    if (f.name.empty() || f.name.find('/') != std::string::npos || f.name.find('\0') != std::string::npos ||
        f.name == "." || f.name == ".." || f.name == kManifestName)
      fail("'", shown(f.name), "' is not the name of a shard");
    if (!sizes.emplace(f.name, f.bytes).second) fail("file '", shown(f.name), "' is listed twice");
  }
  return sizes;
}

// Byte ranges [first, second) of the tensors in one file.
using Extents = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

void check_apart(const std::string& file, Extents extents) {
  std::ranges::sort(extents);
  for (std::size_t i = 1; i < extents.size(); ++i)
    if (extents[i].first < extents[i - 1].second)
      fail("'", shown(file), "': two tensors share the byte ", extents[i].first);
}

void check_parts(const Manifest& m, Cover cover) {
  const std::map<std::string, std::uint64_t> sizes = check_files(m);
  std::map<std::string, Extents> extents;
  for (const auto& [name, t] : m.tensors) {
    check_cover(name, t, cover);
    for (const SavedSlice& s : t.slices) {
      const auto file = sizes.find(s.file);
      if (file == sizes.end())
        fail("tensor '", shown(name), "' is stored in '", shown(s.file),
             "', which the manifest's list of files does not contain");
      if (s.bytes != static_cast<std::uint64_t>(s.region.numel()) * size_of(t.dtype))
        fail("tensor '", shown(name), "' has ", s.bytes, " bytes for a slice of ", t.dtype, s.region.size);
      if (s.offset > file->second || s.bytes > file->second - s.offset)
        fail("tensor '", shown(name), "' ends at byte ", s.offset, " + ", s.bytes, " of '", shown(s.file),
             "', which has ", file->second, " bytes");
      if (s.bytes > 0) extents[s.file].push_back({s.offset, s.offset + s.bytes});
    }
  }
  for (const auto& [file, list] : extents) check_apart(file, list);
}

Manifest from_json(const json& j, Cover cover) {
  if (j.at("format") != kFormat) fail("format is ", shown(j.at("format").dump()), ", expected \"", kFormat, "\"");
  if (j.at("version") != kVersion)
    fail("version is ", shown(j.at("version").dump()), ", but this program reads version ", kVersion);
  Manifest m;
  m.step = whole_number<std::int64_t>(j.at("step"));
  if (m.step < 0 || m.step > kMaxStep) fail("step is ", m.step, ", expected 0 to ", kMaxStep);
  m.world = whole_number<int>(section(j, "layout").at("world"));
  if (m.world < 1) fail("world is ", m.world);
  if (j.contains("token")) m.token = whole_number<std::int64_t>(j.at("token"));
  if (m.token < 0) fail("token is ", m.token);
  m.metadata = section(j, "metadata").dump();
  for (const auto& [name, value] : section(j, "values").items()) m.values.emplace(name, value_from(value));
  for (const auto& [name, f] : section(j, "files").items())
    m.files.push_back({name, whole_number<std::uint64_t>(f.at("bytes")), f.at("xxh3").get<std::string>()});
  for (const auto& [name, t] : section(j, "tensors").items()) m.tensors.emplace(name, tensor_from(t));
  check_parts(m, cover);
  return m;
}

}  // namespace

std::uint64_t Manifest::tensor_bytes() const {
  std::uint64_t total = 0;
  for (const auto& [name, t] : tensors)
    for (const SavedSlice& s : t.slices) total += s.bytes;
  return total;
}

namespace {

// Throws Error if the number of elements or bytes overflows. Dims of 0 are skipped, so that they do not hide an
// overflow in other dims.
void check_countable(const std::string& name, const SavedTensor& t) {
  auto bytes = static_cast<std::int64_t>(size_of(t.dtype));
  for (const std::int64_t d : t.global_shape)
    if (d > 0 && __builtin_mul_overflow(bytes, d, &bytes))
      fail("tensor '", shown(name), "' of shape ", t.global_shape, " is larger than any memory");
}

void check_inside(const std::string& name, const Shape& whole, const Region& region) {
  if (region.start.size() != whole.size() || region.size.size() != whole.size())
    fail("tensor '", shown(name), "' of shape ", whole, " has a slice ", region.size, " at ", region.start);
  for (int d = 0; d < region.size.size(); ++d)
    if (region.size[d] > whole[d] || region.start[d] > whole[d] - region.size[d])
      fail("tensor '", shown(name), "': slice ", region.size, " at ", region.start, " exceeds the shape ", whole);
}

// Returns the dim with the most distinct region starts: along it, regions overlap least.
int max_cut_dim(const std::vector<const Region*>& regions, int dims) {
  int best = 0;
  std::size_t max = 0;
  for (int d = 0; d < dims; ++d) {
    std::set<std::int64_t> starts;
    for (const Region* region : regions) starts.insert(region->start[d]);
    if (starts.size() > max) best = d;
    max = std::max(max, starts.size());
  }
  return best;
}

// Sweeps over the regions along one dim, and compares each region with those that have not ended yet.
void check_disjoint(const std::string& name, const SavedTensor& t) {
  std::vector<const Region*> regions, open;
  for (const SavedSlice& s : t.slices)
    if (s.region.numel() > 0) regions.push_back(&s.region);
  const int dim = max_cut_dim(regions, t.global_shape.size());
  const auto start = [&](const Region* region) { return t.global_shape.size() == 0 ? 0 : region->start[dim]; };
  std::ranges::stable_sort(regions, {}, start);
  for (const Region* region : regions) {
    std::erase_if(open,
                  [&](const Region* o) { return o->size.size() > 0 && o->start[dim] + o->size[dim] <= start(region); });
    for (const Region* o : open)
      if (intersect(*region, *o).numel() != 0)
        fail("tensor '", shown(name), "': slices ", o->size, " at ", o->start, " and ", region->size, " at ",
             region->start, " overlap");
    open.push_back(region);
  }
}

}  // namespace

void check_cover(const std::string& name, const SavedTensor& t, Cover cover) {
  check_countable(name, t);
  for (const SavedSlice& s : t.slices) check_inside(name, t.global_shape, s.region);
  check_disjoint(name, t);
  std::int64_t covered = 0;
  for (const SavedSlice& s : t.slices) covered += s.region.numel();
  if (cover == Cover::whole && covered != t.global_shape.numel())
    fail("tensor '", shown(name), "' of shape ", t.global_shape, " has ", t.global_shape.numel(),
         " elements, but its slices hold ", covered);
}

std::string to_text(const Manifest& m) {
  std::ostringstream out;
  std::map<std::string, json> files;
  for (const SavedFile& f : m.files) files[f.name] = {{"bytes", f.bytes}, {"xxh3", f.xxh3}};
  try {
    out << "{\n \"format\": \"" << kFormat << "\",\n \"version\": " << kVersion << ",\n \"step\": " << m.step << ",\n";
    if (m.token) out << " \"token\": " << m.token << ",\n";
    out << " \"layout\": {\"world\": " << m.world << "},\n \"metadata\": " << parse_own_json<json>(m.metadata).dump()
        << ",\n";
    write_entries(out, "values", m.values);
    out << " \"files\": {";
    const char* comma = "\n";
    for (const auto& [name, f] : files)
      out << std::exchange(comma, ",\n") << "  " << json(name).dump() << ": " << f.dump();
    out << "\n },\n";
    write_entries(out, "tensors", m.tensors);
  } catch (const std::exception& e) {
    fail("the manifest cannot be written as JSON: ", e.what());
  }
  const std::string body = out.str();
  return body + hash_suffix(body);
}

Manifest parse_manifest(const std::string& text, Cover cover) {
  const std::size_t tail = hash_suffix("").size();
  if (text.size() > kMaxText) fail("has ", text.size(), " bytes, but at most ", kMaxText, " are read");
  if (text.size() < tail) fail("is truncated: ", text.size(), " bytes");
  const std::string body = text.substr(0, text.size() - tail);
  if (text.substr(body.size()) != hash_suffix(body))
    fail("is damaged or not a manifest: its last line is not its hash");
  json parsed;
  try {
    parsed = parse_json<json>(text, {.depth = kMaxDepth, .entries = kMaxText, .stop = nullptr});
  } catch (const Error& e) {
    fail("is not a manifest: ", e.what());
  }
  try {
    return from_json(parsed, cover);
  } catch (const json::exception& e) {
    fail("is not a manifest that this program reads: ", e.what());
  }
}

Manifest read_manifest(const std::filesystem::path& checkpoint) {
  const std::filesystem::path path = checkpoint / kManifestName;
  std::error_code error;
  if (!std::filesystem::exists(path, error) && !error) fail(path.string(), " is missing");
  const std::string text = read_text(path);
  try {
    return parse_manifest(text);
  } catch (const Error& e) {
    fail(path.string(), " ", e.what());
  }
}

std::string value_to_json(const std::string& name, const StateValue& value) {
  try {
    return to_json(value).dump();
  } catch (const json::exception&) {
    fail("state '", name, "' is a string that is not UTF-8: store bytes in a u8 tensor");
  }
}

}  // namespace ring
