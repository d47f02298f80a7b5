#include "parallel/compressed_sum.h"

#include <algorithm>
#include <utility>

#include "kernels/elementwise.h"

namespace ring {
namespace {

constexpr GradientCoding kExact = {GradientCode::f32, 0};

// Calls fn(piece, its message) for pieces whose messages are stored back to back in `all`.
template <class Fn>
void for_messages(const std::vector<BufferPiece>& pieces, const Tensor& all, const auto& coding_of, const Fn& fn) {
  std::int64_t at = 0;
  for (const BufferPiece& p : pieces) {
    const std::int64_t bytes = message_bytes(coding_of(p), p.numel);
    fn(p, all.narrow(0, at, bytes));
    at += bytes;
  }
}

}  // namespace

GradientCompressor::GradientCompressor(const CompressionRanks& ranks, const GradientCoding& coding,
                                       std::int64_t elements, bool to_all, const ExecContext& ctx)
    : ranks_(ranks),
      coding_(coding),
      to_all_(to_all),
      kept_(ctx.zeros({has_residuals() ? elements : 0}, DType::f32, Lifetime::run)),
      pending_(ctx.zeros(kept_.shape(), DType::f32, Lifetime::run)) {
  if (!has_residuals() && ctx.stream.device().backend != Backend::cpu)
    fail("parallel.compress: sparse sends messages whose sizes depend on the gradients, which only CPUs support, but ",
         "this run uses ", to_string(ctx.stream.device().backend), ". Set parallel.compress: int8, or run.device: cpu");
}

bool GradientCompressor::compresses(const Param& p, const Slice& slice) {
  return p.shape.size() == 2 && (slice.size == 1 || p.placement.cut != Cut::none);
}

void GradientCompressor::on_residuals_changed(const ExecContext& ctx) {
  if (has_residuals()) copy(pending_, kept_, ctx.stream);
}

void GradientCompressor::end_step(const Tensor& state, const ExecContext& ctx) {
  if (has_residuals()) settle_residuals_kernel({kept_, pending_, state}, ctx);
}

std::vector<BufferPiece> GradientCompressor::split(std::int64_t numel, std::int64_t offset,
                                                   const std::vector<Range>& matrices) const {
  const std::int64_t ranks = std::int64_t{ranks_.between->size()} * ranks_.per_node();
  const std::int64_t share = ((numel + ranks - 1) / ranks + kCodeBlock - 1) / kCodeBlock * kCodeBlock;
  std::vector<BufferPiece> out;
  const auto add = [&](std::int64_t begin, std::int64_t end, bool compressible) {
    while (begin < end) {
      const std::int64_t owner = begin / share, stop = std::min(end, (owner + 1) * share);
      out.push_back({begin, stop - begin, static_cast<int>(owner), offset + begin, compressible});
      begin = stop;
    }
  };
  std::int64_t at = 0;
  for (const Range& m : matrices) {
    add(at, m.begin, false);
    add(m.begin, m.begin + m.numel, true);
    at = m.begin + m.numel;
  }
  add(at, numel, false);
  return out;
}

CompressedSum::CompressedSum(GradientCompressor& shared, const ExecContext& ctx, const Tensor& buffer,
                             const std::vector<BufferPiece>& pieces)
    : shared_(&shared),
      buffer_(buffer),
      all_(pieces),
      pieces_(static_cast<std::size_t>(shared.ranks_.between->size())) {
  const int per_node = shared.ranks_.per_node(), index = shared.ranks_.node ? shared.ranks_.node->rank() : 0;
  for (const BufferPiece& p : all_)
    if (p.owner % per_node == index) pieces_[static_cast<std::size_t>(p.owner / per_node)].push_back(p);
  if (shared.ranks_.node) sum_in_node(ctx, all_);
  send_to_owners(ctx);
}

GradientCoding CompressedSum::coding_of(const BufferPiece& p) const {
  return p.compressible ? shared_->coding_ : kExact;
}

std::int64_t CompressedSum::bytes_of(const Pieces& pieces) const {
  std::int64_t bytes = 0;
  for (const BufferPiece& p : pieces) bytes += message_bytes(coding_of(p), p.numel);
  return bytes;
}

// Most pieces are encoded by a different rank of the node. If this rank has residuals for such a piece, from a
// checkpoint of a different layout, it adds these residuals to its gradient here.
void CompressedSum::sum_in_node(const ExecContext& ctx, const Pieces& all) {
  Communicator& node = *shared_->ranks_.node;
  std::vector<OwnedPiece> owned;
  for (const BufferPiece& p : all) {
    const int root = p.owner % node.size();
    owned.push_back({part(p), root});
    if (root == node.rank() || !shared_->has_residuals()) continue;
    if (Tensor residual = added_residual(p); residual.defined()) {
      if (buffer_.dtype() != DType::f32) {
        residual = ctx.empty({p.numel}, buffer_.dtype());
        cast_kernel({residual_of(p), residual}, ctx);
      }
      axpby_kernel({residual, part(p), part(p), 1, 1}, ctx);
    }
    fill_zero(residual_of(p), ctx.stream);
  }
  node.reduce_pieces(owned, Reduce::sum, ctx.stream.record()).wait(ctx.stream);
}

// Encodes the pieces of every owner and starts to send them. This rank's own pieces stay exact. If the sums of own
// pieces will be encoded, send_sums() adds their residuals, otherwise their residuals are added here.
void CompressedSum::send_to_owners(const ExecContext& ctx) {
  Communicator& comm = *shared_->ranks_.between;
  const auto coding = [this](const BufferPiece& p) { return coding_of(p); };
  const auto exact = [](const BufferPiece&) { return kExact; };
  std::vector<Transfer> sends, receives;
  for (int r = 0; r < comm.size(); ++r) {
    const Pieces& theirs = pieces_[static_cast<std::size_t>(r)];
    const bool own = r == comm.rank();
    std::int64_t bytes = own ? 0 : bytes_of(theirs);
    if (own)
      for (const BufferPiece& p : theirs) bytes += message_bytes(kExact, p.numel);
    sent_.push_back(ctx.empty({bytes}, DType::u8));
    const auto encode = [&](const BufferPiece& p, const Tensor& message) {
      const bool later = own && shared_->to_all_;  // send_sums() adds the residual
      encode_gradient_kernel({part(p), later ? Tensor{} : added_residual(p), later ? Tensor{} : residual_of(p), message,
                              own ? kExact : coding_of(p)},
                             ctx);
    };
    own ? for_messages(theirs, sent_.back(), exact, encode) : for_messages(theirs, sent_.back(), coding, encode);
    received_.push_back(own ? sent_.back()
                            : ctx.empty({bytes_of(pieces_[static_cast<std::size_t>(comm.rank())])}, DType::u8));
    if (own) continue;
    if (bytes > 0) sends.push_back({sent_.back(), r});
    if (received_.back().numel() > 0) receives.push_back({received_.back(), r});
  }
  exchange_ = {comm, sends, receives, !shared_->has_residuals(), ctx};
}

// sum: f32, or undefined to write to the buffer, which must then be f32.
void CompressedSum::decode(const BufferPiece& p, const Tensor& message, const GradientCoding& coding, bool add,
                           const Tensor& sum, const ExecContext& ctx) const {
  decode_gradient_kernel({message, sum.defined() ? sum : part(p), coding, add}, ctx);
}

// Adds the messages that all ranks sent for this rank's pieces, in rank order.
void CompressedSum::add_messages(const ExecContext& ctx) {
  const Communicator& comm = *shared_->ranks_.between;
  std::vector<std::int64_t> at(received_.size(), 0);
  for (const BufferPiece& p : pieces_[static_cast<std::size_t>(comm.rank())]) {
    const bool wide = buffer_.dtype() == DType::f32;
    const Tensor sum = wide ? Tensor{} : ctx.empty({p.numel});
    for (int r = 0; r < comm.size(); ++r) {
      const GradientCoding coding = r == comm.rank() ? kExact : coding_of(p);
      const std::int64_t bytes = message_bytes(coding, p.numel);
      std::int64_t& begin = at[static_cast<std::size_t>(r)];
      decode(p, received_[static_cast<std::size_t>(r)].narrow(0, begin, bytes), coding, r > 0, sum, ctx);
      begin += bytes;
    }
    if (!wide) cast_kernel({sum, part(p)}, ctx);
  }
}

void CompressedSum::send_sums(const ExecContext& ctx) {
  Communicator& comm = *shared_->ranks_.between;
  const auto coding = [this](const BufferPiece& p) { return coding_of(p); };
  const Pieces& own = pieces_[static_cast<std::size_t>(comm.rank())];
  const Tensor message = ctx.empty({bytes_of(own)}, DType::u8);
  for_messages(own, message, coding, [&](const BufferPiece& p, const Tensor& to) {
    encode_gradient_kernel({part(p), added_residual(p), residual_of(p), to, coding_of(p)}, ctx);
  });
  std::vector<Transfer> sends, receives;
  for (int r = 0; r < comm.size(); ++r) {
    Tensor& from = received_[static_cast<std::size_t>(r)];
    from = r == comm.rank() ? message : ctx.empty({bytes_of(pieces_[static_cast<std::size_t>(r)])}, DType::u8);
    if (r == comm.rank()) continue;
    if (message.numel() > 0) sends.push_back({message, r});
    if (from.numel() > 0) receives.push_back({from, r});
  }
  exchange_ = {comm, sends, receives, !shared_->has_residuals(), ctx};
}

void CompressedSum::read_sums(const ExecContext& ctx) {
  const auto coding = [this](const BufferPiece& p) { return coding_of(p); };
  for (std::size_t r = 0; r < pieces_.size(); ++r)
    for_messages(pieces_[r], received_[r], coding, [&](const BufferPiece& p, const Tensor& message) {
      const bool wide = buffer_.dtype() == DType::f32;
      const Tensor sum = wide ? Tensor{} : ctx.empty({p.numel});
      decode(p, message, coding_of(p), false, sum, ctx);
      if (!wide) cast_kernel({sum, part(p)}, ctx);
    });
}

void CompressedSum::send_in_node(const ExecContext& ctx) {
  Communicator& node = *shared_->ranks_.node;
  std::vector<OwnedPiece> owned;
  for (const BufferPiece& p : all_) owned.push_back({part(p), p.owner % node.size()});
  in_node_ = node.broadcast_pieces(owned, ctx.stream.record());
}

bool CompressedSum::advance(const ExecContext& ctx) {
  if (phase_ == Phase::done) return false;
  if (exchange_.advance(ctx)) return true;
  in_node_.wait(ctx.stream);
  if (phase_ == Phase::to_owners) {
    add_messages(ctx);
    sent_.clear();
    phase_ = shared_->to_all_ ? Phase::sums : Phase::done;
    if (shared_->to_all_) send_sums(ctx);
  } else if (phase_ == Phase::sums) {
    read_sums(ctx);
    phase_ = shared_->ranks_.node ? Phase::in_node : Phase::done;
    if (shared_->ranks_.node) send_in_node(ctx);
  } else {
    phase_ = Phase::done;
  }
  if (phase_ == Phase::done) received_.clear();
  return phase_ != Phase::done;
}

}  // namespace ring
