#pragma once
// Parses options of `ringmaster launch` that torchrun shares. All functions throw Error with the option and the values
// that it takes.

#include <string>
#include <vector>

#include "job/agent_environment.h"
#include "launcher/options.h"

namespace ring {

void read_nodes(const std::string& text, LaunchOptions&);              // "4", "2:4"
int read_processes(const std::string& text);                           // "8", "auto", "gpu", "cpu"
Endpoint read_rdzv_endpoint(const std::string& text);                  // "HOST:PORT", "HOST"
void read_rdzv_conf(const std::string& text, LaunchOptions&);          // "join_timeout=600,last_call_timeout=30"
LocalRanks read_streams(const char* option, const std::string& text);  // "3", "0:3,1:0"
LocalRanks read_local_ranks(const std::string& text);                  // "0,2"
std::vector<int> read_signals(const std::string& text);                // "SIGTERM,SIGINT"
NumaBinding read_numa_binding(const std::string& word);                // "node"
std::string find_secret(const std::string& file);  // from the file or RINGMASTER_SECRET; empty if neither is given

// Fills in missing options from the environment that the scheduler gave this agent. Throws Error if the scheduler
// started several agents, but the options would make each of them train alone.
void apply_agent_environment(const AgentEnvironment&, bool nodes_given, LaunchOptions&);
// Throws Error if the endpoint is loopback and other nodes need it.
void reject_loopback(const AgentEnvironment&, const LaunchOptions&);

}  // namespace ring
