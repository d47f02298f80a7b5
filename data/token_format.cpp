#include "data/token_format.h"

#include "core/hash.h"

namespace ring {
namespace {

std::string_view bytes_of(const std::vector<std::uint64_t>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(std::uint64_t)};
}

}  // namespace

std::uint64_t CorpusIndex::compute_hash() const {
  return xxh3({reinterpret_cast<const char*>(this), offsetof(CorpusIndex, index_hash)});
}

std::vector<ByteExtent> CorpusIndex::structure() const {
  std::vector<ByteExtent> data;
  for (const SplitIndex& s : splits) data.insert(data.end(), {s.token_data, s.start_data});
  for (const MaskIndex& m : masks) data.push_back(m.data);
  std::erase_if(data, [](const ByteExtent& e) { return e.bytes == 0; });
  std::ranges::sort(data, {}, &ByteExtent::offset);
  data.push_back({file_bytes, 0});
  std::vector<ByteExtent> between;
  std::uint64_t at = sizeof(CorpusIndex);
  for (const ByteExtent& e : data) {
    between.push_back({at, e.offset - at});
    at = e.end();
  }
  return between;
}

std::uint64_t identity_of(const std::vector<std::uint64_t>& token_hashes,
                          const std::vector<std::uint64_t>& start_hashes,
                          const std::vector<std::uint64_t>& mask_hashes) {
  const std::uint64_t text = xxh3(bytes_of(start_hashes), xxh3(bytes_of(token_hashes)));
  return mask_hashes.empty() ? text : xxh3(bytes_of(mask_hashes), text);
}

}  // namespace ring
