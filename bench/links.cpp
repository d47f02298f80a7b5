#include "bench/links.h"

#include <cstdio>

#include "core/check.h"

namespace ring {
namespace {

LinkTimes measure_group(const ExecContext& ctx, Communicator& group, Communicator& host, bool first_group,
                        double seconds) {
  return {.pair = measure_pair_time(ctx, group, host, first_group, seconds),
          .exchange = measure_exchange_time(ctx, group, host, seconds),
          .collective = measure_collective_time(ctx, group, host, seconds),
          .all_reduce = measure_all_reduce_time(ctx, group, host, seconds)};
}

// ranks: ranks of a node that send at the same time and whose rates are added.
std::string row(const char* link, const char* messages, const MessageTime& t, int ranks) {
  char text[128];
  std::snprintf(text, sizeof text, "%-15s %-26s %12.1f %10.4g\n", link, messages, 1e6 * t.seconds,
                ranks * t.bytes_per_second / 1e9);
  return text;
}

std::string rows(const char* link, const LinkTimes& t, int ranks) {
  return row(link, "one pair, both ways", t.pair, 1) + row(link, "exchange with the next", t.exchange, ranks) +
         row(link, "all-gather, reduce-scatter", t.collective, ranks) + row(link, "all-reduce", t.all_reduce, ranks);
}

}  // namespace

MeshLayout layout_of_links(const WorkerEnvironment& env, Device device) {
  if (env.world % env.local_world != 0)
    fail("bench links: ", env.world, " ranks cannot be divided among nodes of ", env.local_world,
         ". Start the same number of ranks on each node: ringmaster launch --nnodes N --nproc-per-node P");
  return {.axes = {{"nodes", env.world / env.local_world}, {"ranks", env.local_world}}, .device = device};
}

Links measure_links(const ExecContext& ctx, Mesh& mesh, double seconds) {
  Links links{mesh.degree("nodes"), mesh.degree("ranks"), {}, {}};
  if (links.ranks_per_node > 1)
    links.inside = measure_group(ctx, mesh.axis("ranks"), mesh.host(), mesh.coord("nodes") == 0, seconds);
  if (links.nodes > 1)
    links.between = measure_group(ctx, mesh.axis("nodes"), mesh.host(), mesh.coord("ranks") == 0, seconds);
  return links;
}

void set_links(const Links& links, DeviceRates& r) {
  if (links.inside) {
    r.link_seconds = links.inside->exchange.seconds;
    r.link_bytes_per_second = links.inside->exchange.bytes_per_second;
    r.collective_seconds = links.inside->collective.seconds;
    r.collective_bytes_per_second = links.inside->collective.bytes_per_second;
  }
  if (!links.between) return;
  r.node_link_seconds = links.between->exchange.seconds;
  r.node_link_bytes_per_second = links.ranks_per_node * links.between->exchange.bytes_per_second;
}

std::string links_table(const Links& links) {
  char head[128];
  std::snprintf(head, sizeof head, "%-15s %-26s %12s %10s\n", "link", "messages", "latency us", "GB/s");
  std::string text = head;
  if (links.inside) text += rows("inside a node", *links.inside, 1);
  if (links.between) text += rows("between nodes", *links.between, links.ranks_per_node);
  return text;
}

}  // namespace ring
