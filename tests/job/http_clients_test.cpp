// Tests which connections of an HttpServer close, without sockets and without a clock.
#include "job/http_clients.h"

#include <gtest/gtest.h>

namespace ring {
namespace {

using std::chrono::seconds;

const HttpClients::Time kBegin{};
constexpr HttpClientLimits kLimits{.connections = 4, .per_address = 3, .request = seconds(30), .reply = seconds(60)};

HttpClients::Time at(int second) { return kBegin + seconds(second); }

TEST(HttpClients, AWholeRequestHasOneDeadline) {
  HttpClients clients(kLimits);
  clients.on_open(7, "a", at(0));
  EXPECT_EQ(clients.take_overdue(at(29)), std::vector<int>{});
  EXPECT_EQ(clients.take_overdue(at(30)), std::vector<int>{7});
  EXPECT_EQ(clients.take_overdue(at(31)), std::vector<int>{}) << "it is returned once";
  clients.on_reply_end(7, at(31));
  EXPECT_EQ(clients.take_overdue(at(99)), std::vector<int>{}) << "it is still closing";
  clients.on_close(7);
  EXPECT_TRUE(clients.empty());
}

TEST(HttpClients, TheServersWorkHasNoDeadline) {
  HttpClients clients(kLimits);
  clients.on_open(7, "a", at(0));
  clients.on_request(7);
  EXPECT_EQ(clients.take_overdue(at(1000)), std::vector<int>{});
  clients.on_reply_begin(7, at(1000));
  EXPECT_EQ(clients.take_overdue(at(1059)), std::vector<int>{});
  clients.on_reply_end(7, at(1059));
  EXPECT_EQ(clients.take_overdue(at(1088)), std::vector<int>{}) << "the next request has 30 seconds of its own";
  EXPECT_EQ(clients.take_overdue(at(1089)), std::vector<int>{7});
}

TEST(HttpClients, ReadingAReplyHasADeadline) {
  HttpClients clients(kLimits);
  clients.on_open(7, "a", at(0));
  clients.on_request(7);
  clients.on_reply_begin(7, at(5));
  EXPECT_EQ(clients.take_overdue(at(64)), std::vector<int>{});
  EXPECT_EQ(clients.take_overdue(at(65)), std::vector<int>{7});
}

TEST(HttpClients, ACrowdedAddressLosesItsOldestConnection) {
  HttpClients clients(kLimits);
  for (const int socket : {1, 2, 3}) EXPECT_EQ(clients.on_open(socket, "a", at(socket)), std::nullopt);
  clients.on_request(1);
  EXPECT_EQ(clients.on_open(4, "a", at(4)), 2) << "1 is being served";
  EXPECT_EQ(clients.on_open(5, "a", at(5)), 3);
  EXPECT_EQ(clients.on_open(6, "b", at(6)), std::nullopt) << "closing connections do not count";
}

TEST(HttpClients, TheAddressWithTheMostConnectionsLosesOne) {
  HttpClients clients(kLimits);
  clients.on_open(1, "b", at(0));
  for (const int socket : {2, 3, 4}) clients.on_open(socket, "a", at(socket));
  EXPECT_EQ(clients.on_open(5, "c", at(5)), 2) << "the oldest of that address, not the oldest of all";
}

TEST(HttpClients, AReplyResetsTheAgeOfAConnection) {
  HttpClients clients(kLimits);
  for (const int socket : {1, 2, 3}) clients.on_open(socket, "a", at(socket));
  clients.on_request(1);
  clients.on_reply_begin(1, at(4));
  clients.on_reply_end(1, at(4));
  EXPECT_EQ(clients.on_open(4, "a", at(5)), 2);
}

TEST(HttpClients, NoServedConnectionIsClosed) {
  HttpClients clients(kLimits);
  for (const int socket : {1, 2, 3}) {
    clients.on_open(socket, "a", at(socket));
    clients.on_request(socket);
  }
  EXPECT_EQ(clients.on_open(4, "a", at(9)), 4) << "the newcomer itself";
  clients.on_close(4);
  EXPECT_EQ(clients.on_open(5, "b", at(9)), std::nullopt);
  clients.on_request(5);
  EXPECT_EQ(clients.on_open(6, "c", at(9)), 6);
}

}  // namespace
}  // namespace ring
