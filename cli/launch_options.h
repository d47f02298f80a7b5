#pragma once
// Parses the options that `ringmaster launch` shares with torchrun. All functions throw Error with the option and the
// values that it accepts.

#include <string>
#include <vector>

#include "job/agent_environment.h"
#include "launcher/options.h"

namespace ring {

void read_nodes(const std::string& text, LaunchOptions&);              // e.g. "4", "2:4"
int read_processes(const std::string& text);                           // e.g. "8", "auto", "gpu", "cpu"
Endpoint read_rdzv_endpoint(const std::string& text);                  // e.g. "HOST:PORT", "HOST"
void read_rdzv_conf(const std::string& text, LaunchOptions&);          // e.g. "join_timeout=600,last_call_timeout=30"
LocalRanks read_streams(const char* option, const std::string& text);  // e.g. "3", "0:3,1:0"
LocalRanks read_local_ranks(const std::string& text);                  // e.g. "0,2"
std::vector<int> read_signals(const std::string& text);                // e.g. "SIGTERM,SIGINT"
NumaBinding read_numa_binding(const std::string& word);                // e.g. "node"
// Reads the file or RINGMASTER_SECRET; returns "" if neither is given.
std::string find_secret(const std::string& file);

// Fills in missing options from the environment in which the scheduler started this agent. Throws Error if the
// scheduler started several agents, but with the options each of them would train alone.
void apply_agent_environment(const AgentEnvironment&, bool nodes_given, LaunchOptions&);
// Throws Error if the endpoint is a loopback address although other nodes need it.
void reject_loopback(const AgentEnvironment&, const LaunchOptions&);

}  // namespace ring
