// Notes between ranks of one host, which are threads here. Needs no GPU.

#include "comm/nccl/mailbox.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "core/check.h"

namespace ring::nccl {
namespace {

struct GaveUp : Error {
  using Error::Error;
};

class Boxes {
 public:
  explicit Boxes(int ranks) {
    for (int r = 0; r < ranks; ++r) boxes_.push_back(std::make_unique<Mailbox>(r, ranks));
    for (int r = 0; r < ranks; ++r)
      for (int p = 0; p < ranks; ++p)
        if (p != r) of(r).open(p, of(p).name());
    for (const auto& box : boxes_) box->unlink();
  }
  Mailbox& of(int rank) { return *boxes_[static_cast<std::size_t>(rank)]; }

  template <class Fn>
  void run(const Fn& fn) {
    std::vector<std::thread> threads;
    for (std::size_t r = 0; r < boxes_.size(); ++r)
      threads.emplace_back([&, r] { fn(*boxes_[r], static_cast<int>(r)); });
    for (std::thread& t : threads) t.join();
  }

 private:
  std::vector<std::unique_ptr<Mailbox>> boxes_;
};

std::function<void()> for_seconds(int seconds) {
  return [end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds)] {
    if (std::chrono::steady_clock::now() > end) throw GaveUp("too late");
  };
}

// Every rank posts far more notes to each other rank than fit, before it reads any.
TEST(Mailbox, AnyNumberOfNotesArrivesInOrder) {
  constexpr int kRanks = 3, kNotes = 5000;
  Boxes boxes(kRanks);
  std::atomic<int> wrong = 0, late = 0;
  boxes.run([&](Mailbox& box, int rank) {
    try {
      for (int p = 0; p < kRanks; ++p)
        for (std::uint64_t n = 0; p != rank && n < kNotes; ++n)
          box.post_descriptor(p, {{static_cast<std::uint32_t>(rank), n}, 3 * n}, for_seconds(20));
      for (int p = 0; p < kRanks; ++p)
        for (std::uint64_t n = 0; p != rank && n < kNotes; ++n) {
          const RecvDescriptor note = box.take_descriptor(p, for_seconds(20));
          wrong += note.at.segment != static_cast<std::uint32_t>(p) || note.at.offset != n || note.bytes != 3 * n;
        }
    } catch (const GaveUp&) {
      ++late;
    }
  });
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(late, 0);
}

TEST(Mailbox, WaitingCanBeGivenUp) {
  Boxes boxes(2);
  EXPECT_THROW(boxes.of(0).take_descriptor(1, for_seconds(0)), GaveUp);
  const auto fill = [&] {
    for (int n = 0; n < 100'000; ++n) boxes.of(0).post_descriptor(1, {}, for_seconds(0));
  };
  EXPECT_THROW(fill(), GaveUp);
}

TEST(Mailbox, SegmentsAreKnownOnceTheyAreAnnounced) {
  Boxes boxes(2);
  EXPECT_THROW(boxes.of(1).peer_segment(0, 0), Error);
  IpcHandle card;
  card.device = 5;
  boxes.of(0).publish_segment(0, card);
  EXPECT_EQ(boxes.of(1).peer_segment(0, 0).device, 5);
  EXPECT_THROW(boxes.of(1).peer_segment(0, 1), Error);
  EXPECT_THROW(boxes.of(0).publish_segment(1'000'000, card), Error);
}

TEST(Mailbox, AMissingBoxIsAnError) {
  Mailbox box(0, 2);
  try {
    box.open(1, "/ringmaster-none");
    FAIL() << "opened";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("/dev/shm"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace ring::nccl
