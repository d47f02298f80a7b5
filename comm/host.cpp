#include "comm/host.h"

#include <algorithm>
#include <cstring>

namespace ring {
namespace {

// Gathers `bytes` bytes of every rank, in rank order.
std::vector<std::byte> gather_bytes(Communicator& comm, const void* data, std::size_t bytes, Site site) {
  const Stream stream = Stream::cpu(1);
  const auto n = static_cast<std::int64_t>(bytes);
  const Tensor in = Tensor::empty({n}, DType::u8, stream), out = Tensor::empty({comm.size() * n}, DType::u8, stream);
  std::memcpy(in.raw(), data, bytes);
  comm.all_gather(out, in, {}, site).synchronize();  // host waits: transport
  return {out.raw(), out.raw() + out.bytes()};
}

}  // namespace

void all_reduce_host(Communicator& comm, std::span<double> values, Reduce op, Site site) {
  if (comm.size() == 1 || values.empty()) return;
  const std::vector<std::byte> all = gather_bytes(comm, values.data(), values.size_bytes(), site);
  std::vector<double> other(values.size());
  for (int r = 0; r < comm.size(); ++r) {
    std::memcpy(other.data(), all.data() + static_cast<std::size_t>(r) * values.size_bytes(), values.size_bytes());
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
  std::vector<double> sizes(static_cast<std::size_t>(comm.size()), 0.0);
  sizes[static_cast<std::size_t>(comm.rank())] = static_cast<double>(value.size());
  all_reduce_host(comm, sizes, Reduce::sum, site);
  const auto longest = static_cast<std::size_t>(*std::max_element(sizes.begin(), sizes.end()));
  std::string padded = value;
  padded.resize(std::max<std::size_t>(longest, 1));
  const std::vector<std::byte> all = gather_bytes(comm, padded.data(), padded.size(), site);
  std::vector<std::string> out;
  for (std::size_t r = 0; r < sizes.size(); ++r) {
    const char* begin = reinterpret_cast<const char*>(all.data()) + r * padded.size();
    out.emplace_back(begin, static_cast<std::size_t>(sizes[r]));
  }
  return out;
}

}  // namespace ring
