#include "trainer/world.h"

#include <algorithm>

namespace ring {

std::vector<float> sum_over_ranks(Communicator& comm, const Stream& stream, std::vector<float> local) {
  if (comm.size() == 1) return local;
  const Tensor t = from_host(local, stream);
  comm.all_reduce(t, Reduce::sum, stream.record()).wait(stream);
  return to_host<float>(t, stream);
}

std::vector<std::string> gather_text(Communicator& comm, const Stream& stream, const std::string& mine) {
  if (comm.size() == 1) return {mine};
  const std::int64_t ranks = comm.size();
  const Tensor sizes = Tensor::empty({ranks}, DType::i32, stream);
  const Tensor own = from_host(std::vector<std::int32_t>{static_cast<std::int32_t>(mine.size())}, stream);
  comm.all_gather(sizes, own, stream.record()).wait(stream);
  const std::vector<std::int32_t> lengths = to_host<std::int32_t>(sizes, stream);
  const std::int64_t row = std::max<std::int64_t>(1, *std::max_element(lengths.begin(), lengths.end()));
  const Tensor text = Tensor::zeros({row}, DType::u8, stream), all = Tensor::empty({ranks * row}, DType::u8, stream);
  stream.impl().copy(text.raw(), mine.data(), mine.size());
  comm.all_gather(all, text, stream.record()).wait(stream);
  const std::vector<std::uint8_t> host = to_host<std::uint8_t>(all, stream);
  std::vector<std::string> out;
  for (std::size_t r = 0; r < lengths.size(); ++r) {
    const auto begin = host.begin() + static_cast<std::ptrdiff_t>(r) * row;
    out.emplace_back(begin, begin + lengths[r]);
  }
  return out;
}

}  // namespace ring
