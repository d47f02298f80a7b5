#include "parallel/sparse_messages.h"

#include <algorithm>
#include <cstring>

namespace ring {
namespace {

constexpr std::int64_t kBlockBytes = 512;  // 128 f32 numbers

// Calls fn(block, its offset in the message, its size in bytes) for each block of a message.
template <class Fn>
void for_each_block(const Tensor& message, const Fn& fn) {
  const std::int64_t bytes = message.numel();
  for (std::int64_t b = 0; b * kBlockBytes < bytes; ++b)
    fn(b, b * kBlockBytes, static_cast<std::size_t>(std::min(kBlockBytes, bytes - b * kBlockBytes)));
}

Tensor flags_of(const Tensor& message, const ExecContext& ctx) {
  return ctx.empty({(message.numel() + kBlockBytes - 1) / kBlockBytes}, DType::u8);
}

bool is_zero(const std::byte* block, std::size_t bytes) {
  return *block == std::byte{0} && std::memcmp(block, block + 1, bytes - 1) == 0;
}

// Returns the total size in bytes of the blocks that are sent.
std::int64_t size_of_blocks(const Tensor& message, const Tensor& flags) {
  std::int64_t size = 0;
  for_each_block(message, [&](std::int64_t b, std::int64_t, std::size_t bytes) {
    if (flags.data<std::uint8_t>()[b]) size += static_cast<std::int64_t>(bytes);
  });
  return size;
}

Tensor pack(const Tensor& message, const Tensor& flags, const ExecContext& ctx) {
  for_each_block(message, [&](std::int64_t b, std::int64_t at, std::size_t bytes) {
    flags.data<std::uint8_t>()[b] = is_zero(message.raw() + at, bytes) ? 0 : 1;
  });
  const Tensor blocks = ctx.empty({size_of_blocks(message, flags)}, DType::u8);
  std::byte* to = blocks.raw();
  for_each_block(message, [&](std::int64_t b, std::int64_t at, std::size_t bytes) {
    if (!flags.data<std::uint8_t>()[b]) return;
    std::memcpy(to, message.raw() + at, bytes);
    to += bytes;
  });
  return blocks;
}

void unpack(const Tensor& blocks, const Tensor& flags, const Tensor& message) {
  const std::byte* from = blocks.raw();
  for_each_block(message, [&](std::int64_t b, std::int64_t at, std::size_t bytes) {
    if (!flags.data<std::uint8_t>()[b]) {
      std::memset(message.raw() + at, 0, bytes);
      return;
    }
    std::memcpy(message.raw() + at, from, bytes);
    from += bytes;
  });
}

}  // namespace

MessageExchange::MessageExchange(Communicator& comm, const std::vector<Transfer>& sends,
                                 const std::vector<Transfer>& receives, bool sparse, const ExecContext& ctx)
    : comm_(&comm) {
  if (!sparse || !ctx.stream.impl().computes()) {  // a dry run has no contents, so it counts whole messages
    work_ = comm.exchange(sends, receives, ctx.stream.record());
    return;
  }
  std::vector<Transfer> out, in;
  for (const Transfer& t : sends) {
    const Tensor flags = flags_of(t.tensor, ctx);
    sends_.push_back({t, flags, pack(t.tensor, flags, ctx)});
    out.push_back({flags, t.peer});
  }
  for (const Transfer& t : receives) {
    receives_.push_back({t, flags_of(t.tensor, ctx), {}});
    in.push_back({receives_.back().flags, t.peer});
  }
  work_ = comm.exchange(out, in, ctx.stream.record());
  phase_ = Phase::flags;
}

void MessageExchange::send_blocks(const ExecContext& ctx) {
  std::vector<Transfer> out, in;
  for (const Packed& p : sends_)
    if (p.blocks.numel() > 0) out.push_back({p.blocks, p.whole.peer});
  for (Packed& p : receives_) {
    p.blocks = ctx.empty({size_of_blocks(p.whole.tensor, p.flags)}, DType::u8);
    if (p.blocks.numel() > 0) in.push_back({p.blocks, p.whole.peer});
  }
  work_ = comm_->exchange(out, in, ctx.stream.record());
}

bool MessageExchange::advance(const ExecContext& ctx) {
  work_.wait(ctx.stream);
  if (phase_ == Phase::whole) return false;
  if (phase_ == Phase::flags) {
    send_blocks(ctx);
    phase_ = Phase::blocks;
    return true;
  }
  for (const Packed& p : receives_) unpack(p.blocks, p.flags, p.whole.tensor);
  sends_.clear();
  receives_.clear();
  phase_ = Phase::whole;
  return false;
}

}  // namespace ring
