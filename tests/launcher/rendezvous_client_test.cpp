// An agent's connection to its leader, which the test plays: it serves the store and sends the orders.

#include "launcher/rendezvous_client.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "job/store.h"
#include "launcher/messages.h"

namespace ring {
namespace {

using Kind = Order::Kind;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

const std::string kCookie = "cookie";

class PlayedLeader {
 public:
  PlayedLeader() { store_->set(kOwner, "a"); }
  void send(Kind kind, int attempt) {
    store_->append(orders_of("b#1"), encode(Order{.kind = kind, .attempt = attempt, .leader = "a"}));
  }
  // Sends the agent's connection of this number to an address.
  void move(int connection, const Endpoint& to) {
    store_->append(orders_of("b#" + std::to_string(connection)), encode(Order{.kind = Kind::move, .store = to}));
  }
  Report report(int number) {
    return decode_report(store_->get(kReports + "/" + std::to_string(number), milliseconds(20'000)));
  }
  Endpoint at() const { return server_.endpoint(); }
  RendezvousClient::Setup setup() const {
    return {.id = "b", .leader = server_.endpoint(), .cookie = kCookie, .offer = {.host = "host-b"}};
  }

 private:
  StoreServer server_{{"127.0.0.1", 0}, kCookie};
  std::unique_ptr<Store> store_ = connect_store(server_.endpoint(), kCookie, milliseconds(10'000));
};

// Returns the next order within `time`, as its kind and attempt.
std::optional<std::pair<Kind, int>> next(RendezvousClient& client, milliseconds time = milliseconds(20'000)) {
  const auto end = steady_clock::now() + time;
  do {
    if (const auto order = client.next_order()) return std::pair(order->kind, order->attempt);
    pollfd fd{client.fd(), POLLIN, 0};
    poll(&fd, 1, 20);
  } while (steady_clock::now() < end);
  return {};
}

bool is_readable(const RendezvousClient& client) {
  pollfd fd{client.fd(), POLLIN, 0};
  return poll(&fd, 1, 0) == 1;
}

// A successor may start an attempt while a node that it does not wait for still ends its workers.
TEST(RendezvousClient, ANewAttemptWaitsForTheEndOfTheLastOne) {
  PlayedLeader leader;
  RendezvousClient client(leader.setup());
  leader.send(Kind::start, 0);
  EXPECT_EQ(next(client), std::pair(Kind::start, 0));
  leader.send(Kind::start, 1);
  leader.send(Kind::stop, 1);
  EXPECT_FALSE(next(client, milliseconds(700))) << "the workers have not ended";
  EXPECT_FALSE(is_readable(client)) << "the caller would poll without a pause";
  client.report(0, NodeEnd{});
  EXPECT_TRUE(is_readable(client));
  EXPECT_EQ(next(client), std::pair(Kind::start, 1));
  EXPECT_EQ(next(client), std::pair(Kind::stop, 1));
  leader.send(Kind::start, 2);
  leader.send(Kind::end, 2);
  EXPECT_EQ(next(client), std::pair(Kind::end, 2)) << "the end of the job does not wait";
}

TEST(RendezvousClient, TheWorkersAreStoppedIfTheLeaderChangesTwice) {
  PlayedLeader leader;
  RendezvousClient client(leader.setup());
  leader.send(Kind::start, 0);
  EXPECT_EQ(next(client), std::pair(Kind::start, 0));
  leader.move(1, leader.at());
  leader.move(2, leader.at());
  EXPECT_EQ(leader.report(2).from, "b#3");
  EXPECT_EQ(next(client), std::pair(Kind::stop, 0));
}

// The agent of node 0 reaches its leader at a different address from the one that other nodes use.
TEST(RendezvousClient, AnAgentThatItsOwnLeaderHadLostJoinsItAgain) {
  PlayedLeader leader;
  RendezvousClient::Setup setup = leader.setup();
  setup.offer.at = {"192.0.2.1", leader.at().port};
  RendezvousClient client(setup);
  leader.move(1, setup.offer.at);
  const Report again = leader.report(1);
  EXPECT_EQ(again.from, "b#2");
  ASSERT_TRUE(again.offer);
  EXPECT_EQ(again.offer->at, setup.offer.at) << "the address at which it is reached";
}

// A leader that redirects follows later successors, even if its own rendezvous has ended meanwhile.
TEST(Leader, RedirectsToTheNewestSuccessor) {
  const Job job{"job", std::string(32, 's')};
  RendezvousRules rules{.host = "a", .min_nodes = 2, .max_nodes = 2};
  rules.join_timeout = milliseconds(0);
  Leader leader(job, rules, {"127.0.0.1", 0}, false, milliseconds(30'000));
  const auto store = connect_store(leader.own_endpoint(), job.agents_cookie(), milliseconds(10'000));
  const auto announce = [&](int port, int attempt) {
    store->append(kReports, encode(Report{.from = "b", .attempt = attempt, .moved = Endpoint{"10.0.0.1", port}}));
  };
  const auto redirects_to = [&](int port) {
    for (const auto end = steady_clock::now() + milliseconds(20'000); steady_clock::now() < end; poll(nullptr, 0, 5))
      if (store->try_get(kLedFrom) == to_string(Endpoint{"10.0.0.1", port})) return true;
    return false;
  };
  leader.redirect_agents({"10.0.0.1", 1});
  EXPECT_TRUE(redirects_to(1));
  store->append(kReports, encode(Report{.from = "c", .offer = NodeOffer{.host = "c"}}));  // ends the rendezvous
  announce(2, 1);
  EXPECT_TRUE(redirects_to(2));
  announce(3, 1);
  EXPECT_TRUE(redirects_to(3)) << "a successor that has not started an attempt yet";
  announce(2, 0);
  announce(4, 2);
  EXPECT_TRUE(redirects_to(4));
  store->beat("c", "left", milliseconds(30'000), milliseconds(10'000));  // otherwise the leader waits for this agent
}

}  // namespace
}  // namespace ring
