#include "launcher/messages.h"

#include <nlohmann/json.hpp>

#include "core/check.h"

namespace ring {
namespace {

using nlohmann::json;

template <class F>
auto read(const std::string& text, F take) {
  try {
    return take(json::parse(text));
  } catch (const json::exception& e) {
    fail("a message of another launcher, or a damaged one: ", e.what());
  }
}

json part(const NodeOffer& o) { return {{"host", o.host}, {"node_rank", o.node_rank}, {"workers", o.workers}}; }
json part(const NodeFailure& f) {
  return {{"blame", static_cast<int>(f.blame)}, {"code", f.code}, {"curable", f.curable}, {"text", f.text}};
}
json part(const NodeEnd& e) { return {{"code", e.code}, {"stopped", e.stopped}, {"begun", e.begun}, {"step", e.step}}; }

NodeOffer offer_of(const json& j) { return {j.at("host"), j.at("node_rank"), j.at("workers")}; }
NodeFailure failure_of(const json& j) {
  return {static_cast<Blame>(j.at("blame").get<int>()), j.at("code"), j.at("curable"), j.at("text")};
}
NodeEnd end_of(const json& j) { return {j.at("code"), j.at("stopped"), j.at("begun"), j.at("step")}; }

}  // namespace

std::string encode(const Report& r) {
  json j = {{"from", r.from}, {"attempt", r.attempt}};
  if (r.offer) j["offer"] = part(*r.offer);
  if (r.failure) j["failure"] = part(*r.failure);
  if (r.end) j["end"] = part(*r.end);
  return j.dump(-1, ' ', false, json::error_handler_t::replace);
}

Report decode_report(const std::string& text) {
  return read(text, [](const json& j) {
    Report r{j.at("from"), j.at("attempt")};
    if (j.contains("offer")) r.offer = offer_of(j["offer"]);
    if (j.contains("failure")) r.failure = failure_of(j["failure"]);
    if (j.contains("end")) r.end = end_of(j["end"]);
    return r;
  });
}

std::string encode(const Order& o) {
  const json j = {{"kind", static_cast<int>(o.kind)},
                  {"text", o.text},
                  {"verdict", o.verdict},
                  {"attempt", o.attempt},
                  {"code", o.code},
                  {"begun", o.begun},
                  {"node_rank", o.node_rank},
                  {"nodes", o.nodes},
                  {"first_rank", o.first_rank},
                  {"world", o.world},
                  {"leader", o.leader},
                  {"host", o.store.host},
                  {"port", o.store.port}};
  return j.dump(-1, ' ', false, json::error_handler_t::replace);
}

Order decode_order(const std::string& text) {
  return read(text, [](const json& j) {
    Order o;
    o.kind = static_cast<Order::Kind>(j.at("kind").get<int>());
    j.at("text").get_to(o.text);
    j.at("verdict").get_to(o.verdict);
    j.at("attempt").get_to(o.attempt);
    j.at("code").get_to(o.code);
    j.at("begun").get_to(o.begun);
    j.at("node_rank").get_to(o.node_rank);
    j.at("nodes").get_to(o.nodes);
    j.at("first_rank").get_to(o.first_rank);
    j.at("world").get_to(o.world);
    j.at("leader").get_to(o.leader);
    o.store = {j.at("host"), j.at("port")};
    return o;
  });
}

}  // namespace ring
