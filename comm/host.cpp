#include "comm/host.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "core/check.h"
#include "core/crc32c.h"

namespace ring {
namespace {

std::string checked_part(const std::byte* begin, std::size_t bytes, int rank) {
  std::string part(reinterpret_cast<const char*>(begin), bytes);
  std::uint32_t sum = 0;
  std::memcpy(&sum, begin + bytes, sizeof sum);
  if (sum != crc32c(part))
    fail("a message of ", bytes, " bytes from rank ", rank,
         " of its group arrived damaged: its checksum does not match");
  return part;
}

// Returns the bytes of every rank in rank order. All ranks must pass the same size. Each part is sent with a checksum,
// because decisions based on the bytes must be the same on every rank.
std::vector<std::string> gather_bytes(Communicator& comm, std::string_view own, Site site) {
  const Stream stream = Stream::cpu(1);
  const std::uint32_t sum = crc32c(own);
  const auto n = static_cast<std::int64_t>(own.size() + sizeof sum);
  const Tensor in = Tensor::empty({n}, DType::u8, stream), out = Tensor::empty({comm.size() * n}, DType::u8, stream);
  std::memcpy(in.raw(), own.data(), own.size());
  std::memcpy(in.raw() + own.size(), &sum, sizeof sum);
  comm.all_gather(out, in, {}, site).synchronize();  // allowed host wait: transport
  std::vector<std::string> parts;
  for (int r = 0; r < comm.size(); ++r) parts.push_back(checked_part(out.raw() + r * n, own.size(), r));
  return parts;
}

}  // namespace

void all_reduce_host(Communicator& comm, std::span<double> values, Reduce op, Site site) {
  if (comm.size() == 1 || values.empty()) return;
  const std::string_view own(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  const std::vector<std::string> all = gather_bytes(comm, own, site);
  std::vector<double> other(values.size());
  for (std::size_t r = 0; r < all.size(); ++r) {
    std::memcpy(other.data(), all[r].data(), all[r].size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double a = values[i], b = other[i];
      if (r == 0)
        values[i] = b;
      else if (op == Reduce::sum)
        values[i] = a + b;
      else
        values[i] = a > b || a != a ? a : b;
    }
  }
}

double sum_host(Communicator& comm, double value, Site site) {
  all_reduce_host(comm, {&value, 1}, Reduce::sum, site);
  return value;
}

bool any_host(Communicator& comm, bool value, Site site) {
  double flag = value ? 1 : 0;
  all_reduce_host(comm, {&flag, 1}, Reduce::max, site);
  return flag != 0;
}

std::vector<std::string> gather_host(Communicator& comm, const std::string& value, Site site) {
  const std::uint64_t own = value.size();
  std::vector<std::uint64_t> sizes;
  for (const std::string& size : gather_bytes(comm, {reinterpret_cast<const char*>(&own), sizeof own}, site))
    std::memcpy(&sizes.emplace_back(), size.data(), sizeof own);
  std::string padded = value;
  padded.resize(*std::ranges::max_element(sizes));
  std::vector<std::string> all = gather_bytes(comm, padded, site);
  for (std::size_t r = 0; r < all.size(); ++r) all[r].resize(sizes[r]);
  return all;
}

OnThisHost sum_on_this_host(Communicator& comm, std::uint64_t value, Site site) {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  OnThisHost here;
  for (const std::string& text : gather_host(comm, str(value, " ", name.data()), site)) {
    const std::size_t space = text.find(' ');
    if (text.substr(space + 1) != name.data()) continue;
    here.sum += std::stoull(text.substr(0, space));
    ++here.processes;
  }
  return here;
}

}  // namespace ring
