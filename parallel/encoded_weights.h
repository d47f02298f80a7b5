#pragma once
// Frozen weights that the device holds only in the encoding of their format (Param::encoded). Their exact values are in
// host memory; checkpoints read and write them there.

#include <functional>
#include <map>
#include <vector>

#include "model/weight_encoding.h"
#include "parallel/owned_shard.h"

namespace ring {

// Returns the size in bytes of a parameter's slot in a buffer of several weights. Slots are aligned as allocations are,
// because libraries choose GEMMs by the alignment of their operands: a run with ZeRO-3 then uses the same GEMMs as a
// run without ZeRO-3.
std::int64_t slot_bytes(const Param& p, DType weights);

class EncodedWeights {
 public:
  struct Ranks {
    Communicator& data;            // the ranks that share the data
    Communicator& slices;          // the tensor-parallel group
    std::vector<ShardPiece> plan;  // the pieces of all ranks of `data`; empty if each rank owns all weights
    bool gathered = false;         // ZeRO-3: this rank holds only the bytes that it owns
  };
  // Allocates the encoded bytes. Without Ranks::gathered, binds Var::value to the encoded weights. weights: the dtype
  // of weights that are not encoded. The shard, with its values, must outlive this object.
  EncodedWeights(Ranks, const OwnedShard&, const Parameters&, DType weights, const ExecContext&);

  // Encodes the exact values. Call after the values were written and before a forward reads the weights. Collective.
  void encode(const ExecContext&) const;
  // Copies the bytes of a piece that this rank owns to the encoded weight, u8 [WeightEncoding::bytes()]. Only with
  // Ranks::gathered.
  void copy_piece(const ShardPiece&, const Tensor& encoded, const ExecContext&) const;
  std::size_t bytes() const { return all_.bytes(); }

  // Returns the value of bytes() on a rank with these pieces.
  static std::int64_t device_bytes(const Parameters&, const std::vector<ShardPiece>& own, bool gathered);

 private:
  using UseRows = std::function<void(const WeightRows&)>;
  std::map<const Param*, Tensor> find_maxima(const ExecContext&) const;
  void for_each_rows(const ShardPiece&, const ExecContext&, const UseRows&) const;
  void broadcast(const ExecContext&) const;

  Ranks ranks_;
  const OwnedShard& shard_;
  DType weights_;
  std::vector<Param*> params_;                  // the encoded weights
  std::vector<ShardPiece> own_;                 // the pieces of them that this rank owns
  Tensor all_;                                  // u8
  std::map<std::int64_t, Tensor> own_encoded_;  // only with Ranks::gathered: bytes of a piece, by ShardPiece::offset
};

}  // namespace ring
