#include "job/agent_environment.h"

#include <gtest/gtest.h>

#include "core/check.h"

namespace ring {
namespace {

// Variables of a step of `srun -N 2 --ntasks-per-node=1` in Slurm 22.05, on its second node.
const Environment kAgentSrun = {{"SLURM_JOB_ID", "71"},        {"SLURM_STEP_ID", "0"},           {"SLURM_PROCID", "1"},
                                {"SLURM_NTASKS", "2"},         {"SLURM_STEP_NUM_TASKS", "2"},    {"SLURM_NODEID", "1"},
                                {"SLURM_STEP_NUM_NODES", "2"}, {"SLURM_STEP_NODELIST", "n[1-2]"}};

TEST(AgentEnvironment, WithoutALauncherNothingIsKnown) {
  const AgentEnvironment a = parse_agent_environment({{"HOME", "/root"}, {"RANK", "1"}, {"WORLD_SIZE", "2"}});
  EXPECT_EQ(a.source, "");
  EXPECT_EQ(a.agents, 0);
  EXPECT_EQ(a.index, -1);
  EXPECT_FALSE(a.endpoint);
}

TEST(AgentEnvironment, SrunIsRead) {
  const AgentEnvironment a = parse_agent_environment(kAgentSrun);
  EXPECT_EQ(std::pair(a.agents, a.nodes), std::pair(2, 2));
  EXPECT_EQ(std::pair(a.index, a.here), std::pair(1, 1));
  EXPECT_EQ(a.job, "71.0");
  ASSERT_TRUE(a.endpoint);
  EXPECT_EQ(a.endpoint->host, "n1");
  EXPECT_GE(a.endpoint->port, 20000);
  EXPECT_LT(a.endpoint->port, 32768) << "ephemeral range";
  Environment first = kAgentSrun, other = kAgentSrun;
  first["SLURM_PROCID"] = "0";
  other["SLURM_JOB_ID"] = "72";
  EXPECT_EQ(parse_agent_environment(first).endpoint, a.endpoint);
  EXPECT_NE(parse_agent_environment(other).endpoint, a.endpoint);
}

TEST(AgentEnvironment, SeveralTasksOnANodeAreCounted) {
  Environment env = kAgentSrun;
  env["SLURM_STEP_NUM_TASKS"] = "8";
  EXPECT_EQ(parse_agent_environment(env).here, 4);
}

TEST(AgentEnvironment, ABatchScriptIsNotAStep) {
  Environment env = kAgentSrun;
  env.erase("SLURM_STEP_ID");
  env["SLURM_JOB_NUM_NODES"] = "2";
  const AgentEnvironment a = parse_agent_environment(env);
  EXPECT_EQ(std::pair(a.agents, a.nodes), std::pair(0, 2));
  EXPECT_EQ(a.index, -1);
}

TEST(AgentEnvironment, MpirunMpiexecAndKubernetesAreRead) {
  const AgentEnvironment open = parse_agent_environment(
      {{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}});
  EXPECT_EQ(std::tuple(open.index, open.agents, open.nodes, open.here), std::tuple(3, 4, 4, 1));
  EXPECT_FALSE(open.endpoint);
  const AgentEnvironment hydra =
      parse_agent_environment({{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}, {"MPI_LOCALNRANKS", "2"}});
  EXPECT_EQ(std::tuple(hydra.index, hydra.agents, hydra.nodes, hydra.here), std::tuple(1, 4, 2, 2));
  EXPECT_EQ(parse_agent_environment({{"JOB_COMPLETION_INDEX", "5"}}).index, 5);
  EXPECT_EQ(parse_agent_environment({{"JOB_COMPLETION_INDEX", "5"}}).agents, 0);
}

TEST(AgentEnvironment, InvalidValuesAreNamed) {
  for (const auto& [name, value] : std::vector<std::pair<std::string, std::string>>{{"SLURM_STEP_NUM_TASKS", "0"},
                                                                                    {"SLURM_PROCID", "2"},
                                                                                    {"SLURM_PROCID", "x"},
                                                                                    {"SLURM_STEP_NUM_NODES", "-2"}}) {
    Environment env = kAgentSrun;
    env[name] = value;
    try {
      parse_agent_environment(env);
      ADD_FAILURE() << name;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(name), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace ring
