#pragma once
// Implements the operations of a HostCommunicator by sends and receives over a HostLink.

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/call_check.h"
#include "comm/communicator.h"
#include "comm/link.h"
#include "job/options.h"

namespace ring {

// Used by the communication thread only, except abort().
class HostCollectives {
 public:
  HostCollectives(int rank, int size, std::unique_ptr<HostLink> link, const CommOptions& options)
      : rank(rank),
        size(size),
        link_(std::move(link)),
        options_(options),
        check_(rank, size, options),
        peers_(static_cast<std::size_t>(size)) {}

  // Runs body() once `after` is done. If it fails, aborts the group and throws PeerLost or Error. Every later run then
  // throws PeerLost.
  void run(const Operation& op, const Event& after, const std::function<void(HostCollectives&)>& body);
  void abort(const std::string& reason);

  void all_reduce(DType, Reduce, std::byte* data, std::int64_t n);
  void all_gather(std::byte* out, const std::byte* in, std::int64_t bytes);
  void reduce_scatter(DType, Reduce, std::byte* out, const std::byte* in, std::int64_t n);
  void all_to_all(std::byte* out, const std::byte* in, std::int64_t part_bytes);
  void broadcast(std::byte* data, std::int64_t bytes, int root);
  void reduce_pieces(const std::vector<OwnedPiece>&, Reduce);
  void broadcast_pieces(const std::vector<OwnedPiece>&);
  void exchange(const std::vector<Transfer>& sends, const std::vector<Transfer>& receives);

  const int rank, size;

 private:
  struct Segment {  // part of a piece
    DType dtype;
    std::byte* data;
    std::int64_t n;
    int root;
  };
  void reduce_one_hop(DType, Reduce, std::byte* data, std::int64_t n);   // each rank sends all data to every rank
  void reduce_two_hops(DType, Reduce, std::byte* data, std::int64_t n);  // reduce-scatter, then all-gather
  void reduce_part(DType, Reduce, std::byte* out, const std::byte* own, const std::byte* others, std::int64_t n);
  void reduce_segments(const std::vector<Segment>&, Reduce);
  PeerLost name_lost_rank(const PeerLost& error);                // adds the name of the lost rank, if known
  std::string give_up(const Operation&, const std::exception&);  // aborts; returns the reason
  std::uint64_t next_round();                                    // returns the tag of the next round of messages
  std::byte* scratch(std::int64_t bytes);                        // grows scratch_ if needed
  template <class F>
  void each_peer(F f) const {
    for (int p = 0; p < size; ++p)
      if (p != rank) f(p);
  }
  // Returns peer p's index among the other ranks, which is its slot in scratch memory.
  std::int64_t slot(int p) const { return p < rank ? p : p - 1; }

  struct Peer {
    std::uint64_t sent = 0, received = 0;  // number of exchange() messages so far
  };

  std::unique_ptr<HostLink> link_;
  CommOptions options_;
  CallCheck check_;
  std::vector<Peer> peers_;
  std::vector<std::byte> scratch_;  // scratch memory, at most kSegmentBytes per peer
  HostLink::Deadline deadline_;
  std::uint64_t operation_ = 0, round_ = 0, digest_ = 0;
  std::mutex mutex_;
  std::optional<std::string> failure_;
};

}  // namespace ring
