#include "job/environment.h"

#include <gtest/gtest.h>

#include "core/check.h"
#include "job/host_list.h"

namespace ring {
namespace {

std::string refusal(const Environment& env) {
  try {
    parse_environment(env);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

// Returns a launcher's variables with `changes` applied; an empty value unsets a variable.
Environment with(Environment env, const Environment& changes) {
  for (const auto& [k, v] : changes) env[k] = v;
  return env;
}

constexpr const char* kSecret = "0123456789abcdef0123456789abcdef";
const Environment kOurs = {{"RINGMASTER_RANK", "1"},
                           {"RINGMASTER_WORLD", "4"},
                           {"RINGMASTER_LOCAL_RANK", "1"},
                           {"RINGMASTER_LOCAL_WORLD", "4"},
                           {"RINGMASTER_STORE", "127.0.0.1:4711"},
                           {"RINGMASTER_COOKIE", "abc"}};
// Variables that `torchrun --nnodes 2 --nproc-per-node 4` sets on the second node.
const Environment kTorchrun = {{"RANK", "5"},
                               {"WORLD_SIZE", "8"},
                               {"LOCAL_RANK", "1"},
                               {"LOCAL_WORLD_SIZE", "4"},
                               {"GROUP_RANK", "1"},
                               {"GROUP_WORLD_SIZE", "2"},
                               {"ROLE_RANK", "5"},
                               {"MASTER_ADDR", "node0"},
                               {"MASTER_PORT", "29500"},
                               {"TORCHELASTIC_RUN_ID", "none"},
                               {"TORCHELASTIC_RESTART_COUNT", "0"},
                               {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                               {"RINGMASTER_SECRET", kSecret}};
const Environment kMpirun = {{"OMPI_COMM_WORLD_RANK", "2"},
                             {"OMPI_COMM_WORLD_SIZE", "3"},
                             {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                             {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
                             {"OMPI_COMM_WORLD_NODE_RANK", "2"},
                             {"PMIX_NAMESPACE", "1234567"},
                             {"PMIX_RANK", "2"}};
const Environment kSrun = {
    {"SLURM_JOB_ID", "991"},       {"SLURM_STEP_ID", "0"},        {"SLURM_PROCID", "3"},
    {"SLURM_NTASKS", "8"},         {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_LOCALID", "1"},
    {"SLURM_NODEID", "1"},         {"SLURM_STEP_NUM_NODES", "2"}, {"SLURM_STEP_NODELIST", "n[07,12]"},
    {"RINGMASTER_SECRET", kSecret}};

// Variables that MPICH's `mpiexec -n 3` sets.
const Environment kHydra = {
    {"PMI_RANK", "2"}, {"PMI_SIZE", "3"}, {"PMI_FD", "8"}, {"MPI_LOCALRANKID", "2"}, {"MPI_LOCALNRANKS", "3"}};

TEST(Environment, WithoutALauncherThereIsOneProcess) {
  const WorkerEnvironment w = parse_environment({{"HOME", "/root"}, {"MASTER_ADDR", "x"}});
  EXPECT_EQ(w.source, "single");
  EXPECT_EQ(w.world, 1);
  EXPECT_EQ(w.rank, 0);
  EXPECT_EQ(w.note, "");
}

TEST(Environment, OurLauncherTakesPrecedence) {
  Environment all = kOurs;
  for (const Environment& other : {kTorchrun, kMpirun, kSrun}) all.insert(other.begin(), other.end());
  const WorkerEnvironment w = parse_environment(all);
  EXPECT_EQ(w.source, "ringmaster");
  EXPECT_EQ(w.rank, 1);
  EXPECT_EQ(w.world, 4);
  EXPECT_EQ(w.local_world, 4);
  EXPECT_EQ(w.store, (Endpoint{"127.0.0.1", 4711}));
  EXPECT_EQ(w.cookie, "abc");
  EXPECT_FALSE(w.host_store);
}

TEST(Environment, TorchrunIsRead) {
  const WorkerEnvironment w = parse_environment(kTorchrun);
  EXPECT_EQ(w.source, "torchrun");
  EXPECT_EQ(w.rank, 5);
  EXPECT_EQ(w.world, 8);
  EXPECT_EQ(w.local_rank, 1);
  EXPECT_EQ(w.local_world, 4);
  EXPECT_TRUE(w.host_store);
  EXPECT_EQ(w.store.host, "node0");
  EXPECT_GT(w.store.port, 29500) << "torchrun's own agent listens on MASTER_PORT";
  const WorkerEnvironment other = parse_environment(with(kTorchrun, {{"RANK", "0"}, {"LOCAL_RANK", "0"}}));
  EXPECT_EQ(other.cookie, w.cookie);
  EXPECT_EQ(other.store, w.store);
  EXPECT_NE(parse_environment(with(kTorchrun, {{"TORCHELASTIC_RESTART_COUNT", "1"}})).cookie, w.cookie);
}

TEST(Environment, TorchrunTakesPrecedenceOverSlurm) {
  Environment env = kTorchrun;  // srun starts one torchrun per node
  env.insert(kSrun.begin(), kSrun.end());
  EXPECT_EQ(parse_environment(env).rank, 5);
}

TEST(Environment, MpirunIsRead) {
  const WorkerEnvironment w = parse_environment(kMpirun);
  EXPECT_EQ(w.source, "mpirun");
  EXPECT_EQ(w.rank, 2);
  EXPECT_EQ(w.world, 3);
  EXPECT_EQ(w.local_rank, 2);
  EXPECT_EQ(w.store.host, "127.0.0.1");
  EXPECT_GE(w.store.port, 20000);
  EXPECT_LT(w.store.port, 32768) << "ephemeral range";
  EXPECT_NE(parse_environment(with(kMpirun, {{"PMIX_NAMESPACE", "7654321"}})).cookie, w.cookie);
}

TEST(Environment, MpirunOverNodesNeedsAnAddress) {
  const Environment nodes =
      with(kMpirun,
           {{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}, {"RINGMASTER_SECRET", kSecret}});
  EXPECT_NE(refusal(nodes).find("set MASTER_ADDR"), std::string::npos) << refusal(nodes);
  const WorkerEnvironment w = parse_environment(with(nodes, {{"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "5000"}}));
  EXPECT_EQ(w.store, (Endpoint{"10.0.0.1", 5000}));
}

TEST(Environment, MpiexecIsRead) {
  const WorkerEnvironment w = parse_environment(kHydra);
  EXPECT_EQ(w.source, "mpiexec");
  EXPECT_EQ(std::pair(w.rank, w.world), std::pair(2, 3));
  EXPECT_EQ(std::pair(w.local_rank, w.local_world), std::pair(2, 3));
  EXPECT_EQ(w.store.host, "127.0.0.1");
  EXPECT_EQ(parse_environment(with(kHydra, {{"PMI_RANK", "0"}, {"PMI_FD", "6"}})).cookie, w.cookie);
  Environment slurm = kHydra;  // inside Slurm, mpiexec's proxies are tasks of srun
  slurm.insert(kSrun.begin(), kSrun.end());
  EXPECT_EQ(parse_environment(slurm).source, "mpiexec");
  const Environment nodes = with(kHydra, {{"MPI_LOCALNRANKS", "1"}, {"MPI_LOCALRANKID", "0"}});
  EXPECT_NE(refusal(nodes).find("set MASTER_ADDR"), std::string::npos) << refusal(nodes);
  EXPECT_NE(refusal(with(nodes, {{"MASTER_ADDR", "10.0.0.1"}})).find("RINGMASTER_SECRET is not set"),
            std::string::npos);
}

TEST(Environment, SrunMayAlsoSetPmi) {
  const WorkerEnvironment w = parse_environment(with(kSrun, {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}}));
  EXPECT_EQ(w.source, "srun");
  EXPECT_EQ(w.rank, 3);
}

TEST(Environment, SrunIsRead) {
  const WorkerEnvironment w = parse_environment(kSrun);
  EXPECT_EQ(w.source, "srun");
  EXPECT_EQ(w.rank, 3);
  EXPECT_EQ(w.world, 4) << "the step's tasks, not the allocation's";
  EXPECT_EQ(w.local_rank, 1);
  EXPECT_EQ(w.store.host, "n07");
  EXPECT_LT(w.local_world, w.world);
  const WorkerEnvironment one =
      parse_environment(with(kSrun, {{"SLURM_STEP_NODELIST", "n07"}, {"SLURM_STEP_NUM_NODES", "1"}}));
  EXPECT_EQ(one.store.host, "127.0.0.1");
  EXPECT_EQ(one.local_world, 4);
  EXPECT_NE(parse_environment(with(kSrun, {{"SLURM_STEP_ID", "1"}})).cookie, w.cookie);
}

TEST(Environment, SbatchWithoutAStepTrainsAloneAndSaysSo) {
  const WorkerEnvironment w = parse_environment({{"SLURM_JOB_ID", "9"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}});
  EXPECT_EQ(w.world, 1);
  EXPECT_NE(w.note.find("srun"), std::string::npos) << w.note;
}

TEST(Environment, PlainVariablesAreRead) {
  const Environment plain = {
      {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "6000"}};
  const WorkerEnvironment w = parse_environment(plain);
  EXPECT_EQ(w.source, "environment");
  EXPECT_EQ(w.store, (Endpoint{"127.0.0.1", 6000}));
  EXPECT_EQ(w.local_world, 2);
  EXPECT_NE(refusal(with(plain, {{"MASTER_ADDR", ""}})).find("MASTER_ADDR"), std::string::npos);
  // Kubeflow's PyTorchJob counts pods in RANK and WORLD_SIZE and does not set LOCAL_RANK.
  EXPECT_NE(refusal(with(plain, {{"LOCAL_RANK", ""}})).find("LOCAL_RANK"), std::string::npos);
}

// A process that listens beyond its host has to know a secret.
TEST(Environment, SeveralNodesNeedASecret) {
  const Environment plain = {{"RANK", "1"},
                             {"WORLD_SIZE", "4"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "2"},
                             {"MASTER_ADDR", "10.0.0.1"},
                             {"MASTER_PORT", "6000"}};
  for (const Environment& env : {kTorchrun, kSrun, with(plain, {{"RINGMASTER_SECRET", kSecret}})}) {
    const WorkerEnvironment w = parse_environment(env);
    EXPECT_FALSE(is_loopback(w.store.host));
    EXPECT_NE(parse_environment(with(env, {{"RINGMASTER_SECRET", std::string(32, 'x')}})).cookie, w.cookie);
    EXPECT_NE(refusal(with(env, {{"RINGMASTER_SECRET", ""}})).find("RINGMASTER_SECRET is not set"), std::string::npos);
    EXPECT_NE(refusal(with(env, {{"RINGMASTER_SECRET", "short"}})).find("can be guessed"), std::string::npos);
  }
  // With plain variables, the last rank cannot tell that it is on a different node unless a variable says so.
  EXPECT_NE(refusal(with(plain, {{"RANK", "3"}, {"LOCAL_RANK", "3"}, {"LOCAL_WORLD_SIZE", ""}})), "");
}

TEST(Environment, OneNodeMeetsOnItselfWithoutASecret) {
  const Environment torchrun = with(kTorchrun, {{"WORLD_SIZE", "4"}, {"RANK", "1"}});
  EXPECT_EQ(parse_environment(torchrun).store.host, "node0");
  EXPECT_EQ(parse_environment(with(torchrun, {{"RINGMASTER_SECRET", ""}})).store.host, "127.0.0.1");
}

struct Bad {
  const char* what;
  Environment env;
  std::vector<std::string> named;
};

TEST(Environment, ErrorsNameTheVariables) {
  const std::vector<Bad> cases = {
      {"no world", {{"RINGMASTER_RANK", "0"}}, {"RINGMASTER_WORLD"}},
      {"no rank", {{"RINGMASTER_WORLD", "2"}}, {"RINGMASTER_RANK"}},
      {"no store", with(kOurs, {{"RINGMASTER_STORE", ""}}), {"RINGMASTER_STORE", "RINGMASTER_WORLD=4"}},
      {"no cookie", with(kOurs, {{"RINGMASTER_COOKIE", ""}}), {"RINGMASTER_COOKIE"}},
      {"bad store", with(kOurs, {{"RINGMASTER_STORE", "nowhere"}}), {"RINGMASTER_STORE", "nowhere"}},
      {"rank = world", with(kOurs, {{"RINGMASTER_RANK", "4"}}), {"RINGMASTER_RANK=4", "RINGMASTER_WORLD=4"}},
      {"negative", with(kOurs, {{"RINGMASTER_RANK", "-1"}}), {"RINGMASTER_RANK='-1'"}},
      {"not a number", with(kTorchrun, {{"WORLD_SIZE", "8x"}}), {"WORLD_SIZE='8x'"}},
      {"huge", with(kTorchrun, {{"WORLD_SIZE", "99999999999"}}), {"WORLD_SIZE='99999999999'"}},
      {"local too high", with(kTorchrun, {{"LOCAL_RANK", "4"}}), {"LOCAL_RANK=4", "LOCAL_WORLD_SIZE=4"}},
      {"local world too high", with(kTorchrun, {{"LOCAL_WORLD_SIZE", "9"}}), {"LOCAL_WORLD_SIZE=9", "WORLD_SIZE=8"}},
      {"no address", with(kTorchrun, {{"MASTER_ADDR", ""}}), {"MASTER_ADDR"}},
      {"bad port", with(kTorchrun, {{"MASTER_PORT", "70000"}}), {"MASTER_PORT=70000"}},
      {"mpirun and another rank", with(kMpirun, {{"RANK", "1"}}), {"RANK=1", "OMPI_COMM_WORLD_RANK=2"}},
      {"mpirun and another world", with(kMpirun, {{"WORLD_SIZE", "4"}}), {"WORLD_SIZE=4", "OMPI_COMM_WORLD_SIZE=3"}},
      {"srun and another rank", with(kSrun, {{"RANK", "0"}}), {"RANK=0", "SLURM_PROCID=3"}},
      {"srun, bad node list", with(kSrun, {{"SLURM_STEP_NODELIST", "n[1-"}}), {"n[1-"}},
      {"half of plain", {{"RANK", "0"}}, {"RANK", "WORLD_SIZE"}},
      {"other half of plain", {{"WORLD_SIZE", "2"}}, {"RANK", "WORLD_SIZE"}},
  };
  for (const Bad& c : cases) {
    const std::string error = refusal(c.env);
    EXPECT_FALSE(error.empty()) << c.what;
    for (const std::string& name : c.named) EXPECT_NE(error.find(name), std::string::npos) << c.what << ": " << error;
  }
}

TEST(Environment, EqualPlainVariablesDoNotContradict) {
  EXPECT_EQ(parse_environment(with(kMpirun, {{"RANK", "2"}, {"WORLD_SIZE", "3"}})).rank, 2);
}

TEST(Environment, CommOptionsAreRead) {
  EXPECT_EQ(parse_comm_options({{"RINGMASTER_LIVENESS", "7"}}).liveness, std::chrono::seconds(7));
  EXPECT_EQ(parse_comm_options({{"RINGMASTER_LIVENESS", "0"}}).liveness.count(), 0);
  EXPECT_THROW(parse_comm_options({{"RINGMASTER_LIVENESS", "1"}}), Error);
  EXPECT_EQ(parse_comm_options({{"RINGMASTER_COMM_TIMEOUT", "7"}}).timeout, std::chrono::seconds(7));
  EXPECT_EQ(parse_comm_options({{"RINGMASTER_COMM_TIMEOUT", "7"}}).connect_timeout, std::chrono::seconds(7));
  EXPECT_EQ(parse_comm_options({}).connect_timeout, std::chrono::seconds(60));
  EXPECT_EQ(parse_comm_options({{"RINGMASTER_ADDRESS", "10.0.0.2"}}).address, "10.0.0.2");
  EXPECT_EQ(parse_comm_options({}).timeout, CommOptions{}.timeout);
  EXPECT_TRUE(parse_comm_options({}).copy_engines);
  EXPECT_FALSE(parse_comm_options({{"RINGMASTER_COPY_ENGINES", "0"}}).copy_engines);
  EXPECT_THROW(parse_comm_options({{"RINGMASTER_COPY_ENGINES", "2"}}), Error);
  EXPECT_THROW(parse_comm_options({{"RINGMASTER_COMM_TIMEOUT", "0"}}), Error);
  EXPECT_THROW(parse_comm_options({{"RINGMASTER_COMM_TIMEOUT", "soon"}}), Error);
}

TEST(Environment, AResumeCommandUsesTheSameLauncher) {
  const auto start = [](const Environment& env) { return start_command(parse_environment(env), "train runs/a"); };
  EXPECT_EQ(start({}), "ringmaster train runs/a");
  EXPECT_EQ(start(kOurs), "ringmaster launch --nproc-per-node 4 -- train runs/a");
  EXPECT_EQ(start(kMpirun), "mpirun -n 3 ringmaster train runs/a");
  EXPECT_EQ(start(kSrun), "srun --ntasks 4 ringmaster train runs/a");
  EXPECT_EQ(start(kTorchrun),
            "torchrun --no-python --nnodes 2 --nproc-per-node 4 ringmaster train runs/a on each node");
  EXPECT_EQ(start(with(kTorchrun, {{"WORLD_SIZE", "4"}, {"RANK", "1"}})),
            "torchrun --no-python --nproc-per-node 4 ringmaster train runs/a");
  EXPECT_EQ(start({{"RANK", "0"},
                   {"WORLD_SIZE", "2"},
                   {"LOCAL_RANK", "0"},
                   {"MASTER_ADDR", "127.0.0.1"},
                   {"MASTER_PORT", "29500"}}),
            "ringmaster train runs/a in each of the 2 processes");
}

TEST(HostList, IsExpanded) {
  using List = std::vector<std::string>;
  EXPECT_EQ(expand_host_list(""), List{});
  EXPECT_EQ(expand_host_list("a"), List{"a"});
  EXPECT_EQ(expand_host_list("n[09-11,20],login"), (List{"n09", "n10", "n11", "n20", "login"}));
  EXPECT_EQ(expand_host_list("r[1-2]n[3,4].x"), (List{"r1n3.x", "r1n4.x", "r2n3.x", "r2n4.x"}));
  for (const char* bad : {"n[", "n[1", "n]", "n[2-1]", "n[a]", "n[]", "a,,b", "n[1-99999999]", "n[1-2-3]"})
    EXPECT_THROW(expand_host_list(bad), Error) << bad;
}

std::string host_list_error(const std::string& text) {
  try {
    expand_host_list(text);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

// Each list is refused before it is expanded: it would take gigabytes, or overflow the stack.
TEST(HostList, AbsurdListsAreRefused) {
  EXPECT_EQ(expand_host_list("n[0-65535]").size(), 65536u);
  EXPECT_NE(host_list_error("n[0-65535],m").find("more than 65536 hosts"), std::string::npos);
  EXPECT_NE(host_list_error("n[0-9999][0-9999]").find("more than 65536 hosts"), std::string::npos);
  EXPECT_NE(host_list_error("n[0-999999999][0-999999999][0-999999999]").find("more than 65536 hosts"),
            std::string::npos);
  std::string brackets, open;
  for (int i = 0; i < 100'000; ++i) brackets += "[1]", open += "[";
  EXPECT_NE(host_list_error("n" + brackets).find("longer than 255 characters"), std::string::npos);
  EXPECT_NE(host_list_error(open), "");
  EXPECT_LT(host_list_error(open).size(), 300u);
  EXPECT_NE(host_list_error(open + std::string(100'000, ']')), "");
  EXPECT_NE(host_list_error(std::string(300, 'x')).find("longer than 255"), std::string::npos);
}

TEST(Environment, AbsurdNumbersAreRefused) {
  EXPECT_NE(refusal(with(kOurs, {{"RINGMASTER_WORLD", "2000000000"}})).find("RINGMASTER_WORLD=2000000000"),
            std::string::npos);
  EXPECT_NE(refusal(with(kTorchrun, {{"WORLD_SIZE", "65537"}})).find("WORLD_SIZE=65537"), std::string::npos);
  EXPECT_EQ(refusal(with(kTorchrun, {{"WORLD_SIZE", "65536"}})), "");
  EXPECT_NE(refusal(with(kSrun, {{"SLURM_LOCALID", "2147483647"}})).find("SLURM_LOCALID=2147483647 contradicts"),
            std::string::npos);
  EXPECT_NE(refusal(with(kTorchrun, {{"MASTER_PORT", "65535"}})).find("leaves no port above"), std::string::npos);
  const WorkerEnvironment last = parse_environment(with(kTorchrun, {{"MASTER_PORT", "65530"}}));
  EXPECT_EQ(last.store.port + last.store_ports - 1, 65535);
  for (const std::string text :
       {"-1", "4294967297", "9223372036854775808", "1e3", "0x10", " 1", "1 ", "nan", "", "1.0", "+1"}) {
    const std::string wrong = refusal(with(kOurs, {{"RINGMASTER_LOCAL_WORLD", text}}));
    EXPECT_EQ(wrong.empty(), text.empty()) << text;
  }
  const std::string flood(100'000, '9');
  EXPECT_LT(refusal(with(kOurs, {{"RINGMASTER_WORLD", flood}})).size(), 300u);
  for (const char* name : {"RINGMASTER_COMM_TIMEOUT", "RINGMASTER_LIVENESS", "RINGMASTER_COPY_ENGINES"})
    for (const char* text : {"1000001", "2147483648", "-1", "nan"})
      EXPECT_THROW(parse_comm_options({{name, text}}), Error) << name << "=" << text;
}

}  // namespace
}  // namespace ring
