// Which connections of an HttpServer close, decided without sockets and without a clock.
#include "comm/http_clients.h"

#include <gtest/gtest.h>

namespace ring {
namespace {

using std::chrono::seconds;

const HttpClients::Time kBegin{};
constexpr HttpClientLimits kLimits{.connections = 4, .per_address = 3, .request = seconds(30), .reply = seconds(60)};

HttpClients::Time at(int second) { return kBegin + seconds(second); }

TEST(HttpClients, ARequestHasADeadlineAsAWhole) {
  HttpClients clients(kLimits);
  clients.opened(7, "a", at(0));
  EXPECT_EQ(clients.overdue(at(29)), std::vector<int>{});
  EXPECT_EQ(clients.overdue(at(30)), std::vector<int>{7});
  EXPECT_EQ(clients.overdue(at(31)), std::vector<int>{}) << "told once";
  clients.reply_ended(7, at(31));
  EXPECT_EQ(clients.overdue(at(99)), std::vector<int>{}) << "it is closing all the same";
  clients.closed(7);
  EXPECT_TRUE(clients.empty());
}

TEST(HttpClients, TheServersOwnWorkHasNone) {
  HttpClients clients(kLimits);
  clients.opened(7, "a", at(0));
  clients.request_arrived(7);
  EXPECT_EQ(clients.overdue(at(1000)), std::vector<int>{});
  clients.reply_begins(7, at(1000));
  EXPECT_EQ(clients.overdue(at(1059)), std::vector<int>{});
  clients.reply_ended(7, at(1059));
  EXPECT_EQ(clients.overdue(at(1088)), std::vector<int>{}) << "the next request has 30 seconds of its own";
  EXPECT_EQ(clients.overdue(at(1089)), std::vector<int>{7});
}

TEST(HttpClients, AReplyHasToBeRead) {
  HttpClients clients(kLimits);
  clients.opened(7, "a", at(0));
  clients.request_arrived(7);
  clients.reply_begins(7, at(5));
  EXPECT_EQ(clients.overdue(at(64)), std::vector<int>{});
  EXPECT_EQ(clients.overdue(at(65)), std::vector<int>{7});
}

TEST(HttpClients, TheOldestOfACrowdedAddressMakesWay) {
  HttpClients clients(kLimits);
  for (const int socket : {1, 2, 3}) EXPECT_EQ(clients.opened(socket, "a", at(socket)), std::nullopt);
  clients.request_arrived(1);
  EXPECT_EQ(clients.opened(4, "a", at(4)), 2) << "1 is being served";
  EXPECT_EQ(clients.opened(5, "a", at(5)), 3);
  EXPECT_EQ(clients.opened(6, "b", at(6)), std::nullopt) << "those that were told to close do not count";
}

TEST(HttpClients, ACrowdMakesWayForOthers) {
  HttpClients clients(kLimits);
  clients.opened(1, "b", at(0));
  for (const int socket : {2, 3, 4}) clients.opened(socket, "a", at(socket));
  EXPECT_EQ(clients.opened(5, "c", at(5)), 2) << "the oldest of those who have the most, not the oldest of all";
}

TEST(HttpClients, AConnectionThatWasServedIsYoungAgain) {
  HttpClients clients(kLimits);
  for (const int socket : {1, 2, 3}) clients.opened(socket, "a", at(socket));
  clients.request_arrived(1);
  clients.reply_begins(1, at(4));
  clients.reply_ended(1, at(4));
  EXPECT_EQ(clients.opened(4, "a", at(5)), 2);
}

TEST(HttpClients, NobodyWhoIsServedMakesWay) {
  HttpClients clients(kLimits);
  for (const int socket : {1, 2, 3}) {
    clients.opened(socket, "a", at(socket));
    clients.request_arrived(socket);
  }
  EXPECT_EQ(clients.opened(4, "a", at(9)), 4) << "the newcomer itself";
  clients.closed(4);
  EXPECT_EQ(clients.opened(5, "b", at(9)), std::nullopt);
  clients.request_arrived(5);
  EXPECT_EQ(clients.opened(6, "c", at(9)), 6);
}

}  // namespace
}  // namespace ring
