// The recipes of docs/launching.md, run with the schedulers themselves if they are installed: whatever starts the
// workers or the agents, the losses are those of `ringmaster launch` alone.

#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>

#include "comm/gloo/gloo.h"
#include "core/exit_code.h"
#include "core/joined.h"
#include "job/socket.h"
#include "tests/paths.h"
#include "tests/trainer/runs.h"

namespace ring {
namespace {

using test::Finished;
using test::Process;

// Returns the path where a shell finds a program; "" if it does not.
std::string find_program(const std::string& name) {
  std::istringstream folders(std::string(std::getenv("PATH")) + ":/usr/sbin:/sbin");
  for (std::string folder; std::getline(folders, folder, ':');)
    if (access((folder + "/" + name).c_str(), X_OK) == 0) return folder + "/" + name;
  return "";
}

class DistSchedulers : public test::Runs {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
    Runs::SetUp();
  }
  std::vector<std::string> train(const std::string& run) const {
    return Runs::train(run, {"train.steps=20", "train.micro_batch=1", "train.eval_interval=0", "run.threads=1"});
  }
  static std::vector<std::string> words(std::vector<std::string> first, const std::vector<std::string>& then) {
    first.insert(first.end(), then.begin(), then.end());
    return first;
  }
  // Returns the command that trains the run under `ringmaster launch` with these options.
  std::vector<std::string> launch(const std::string& run, const std::vector<std::string>& options) const {
    std::vector<std::string> all = train(run);
    all.insert(all.begin() + 1, "--");
    all.insert(all.begin() + 1, options.begin(), options.end());
    all.insert(all.begin() + 1, "launch");
    return all;
  }
  void expect_two_processes(const Finished& f) const {
    ASSERT_EQ(f.code, 0) << f.output;
    EXPECT_NE(f.output.find("2 processes on cpu"), std::string::npos) << f.output;
    expect_same_losses("run");
  }
  void expect_same_losses(const std::string& run) const {
    const Finished f = test::run_process(launch("reference", {"-n", "2"}));
    ASSERT_EQ(f.code, 0) << f.output;
    ASSERT_EQ(losses("reference").size(), 20u);
    EXPECT_EQ(losses(run), losses("reference"));
  }
  std::string secret() const {
    EXPECT_EQ(ring({"launch", "--make-secret", path("secret")}).code, 0);
    return path("secret");
  }
};

TEST_F(DistSchedulers, MpirunStartsWorkers) {
  const std::string mpirun = find_program("mpirun.openmpi");
  if (mpirun.empty()) GTEST_SKIP() << "no mpirun.openmpi: install openmpi-bin";
  const Finished f = test::run_process(
      words({mpirun, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2"}, train("run")),
      {{"OMPI_MCA_plm_rsh_agent", "false"}});
  expect_two_processes(f);
}

TEST_F(DistSchedulers, MpiexecStartsWorkers) {
  const std::string mpiexec = find_program("mpiexec.hydra");
  if (mpiexec.empty()) GTEST_SKIP() << "no mpiexec.hydra: install mpich";
  const Finished f = test::run_process(words({mpiexec, "-n", "2"}, train("run")));
  expect_two_processes(f);
}

TEST_F(DistSchedulers, TorchrunStartsWorkers) {
  const std::string torchrun = find_program("torchrun");
  if (torchrun.empty()) GTEST_SKIP() << "no torchrun: pip install torch";
  const Finished f =
      test::run_process(words({torchrun, "--no-python", "--standalone", "--nproc-per-node", "2"}, train("run")));
  expect_two_processes(f);
}

// mpirun starts both agents on one node, where they would train separately.
TEST_F(DistSchedulers, SeveralAgentsOfMpirunOnANodeAreRefused) {
  const std::string mpirun = find_program("mpirun.openmpi");
  if (mpirun.empty()) GTEST_SKIP() << "no mpirun.openmpi: install openmpi-bin";
  const std::vector<std::string> start = {mpirun, "--allow-run-as-root", "--oversubscribe", "-n", "2"};
  const Finished f = test::run_process(words(start, launch("run", {"-n", "1"})));
  EXPECT_NE(f.code, 0);
  EXPECT_NE(f.output.find("mpirun started 2 copies"), std::string::npos) << f.output;
}

// Two agents stand for two nodes. The pods' completion indices tell them apart.
TEST_F(DistSchedulers, PodsOfAnIndexedJobStartAgents) {
  const Process::Environment common = {
      {"PET_NNODES", "2"}, {"PET_NPROC_PER_NODE", "1"}, {"RINGMASTER_SECRET", std::string(32, 's')}};
  const int port = local_endpoint(listen_on({"127.0.0.1", 0})).port;
  const auto pod = [&](const char* index) {
    Process::Environment env = common;
    env.insert(env.end(),
               {{"JOB_COMPLETION_INDEX", index}, {"PET_RDZV_ENDPOINT", "127.0.0.1:" + std::to_string(port)}});
    return std::make_unique<Process>(launch("run", {}), env);
  };
  const auto second = pod("1"), first = pod("0");
  for (const auto* p : {&first, &second}) {
    const Finished f = (*p)->wait();
    ASSERT_EQ(f.code, 0) << f.output;
  }
  expect_same_losses("run");
}

// Runs commands on the first node of a simulated cluster of two.
class DistSlurm : public DistSchedulers {
 protected:
  void SetUp() override {
    for (const char* program : {"srun", "slurmctld", "slurmd", "munged", "ip", "unshare"})
      if (find_program(program).empty()) GTEST_SKIP() << "no " << program << ": install slurm-wlm, munge and iproute2";
    if (geteuid() != 0) GTEST_SKIP() << "needs root, to create namespaces";
    DistSchedulers::SetUp();
  }
  // Takes several commands at a time, since making a cluster takes a second. Exit code 77: this machine cannot make
  // one.
  Finished on_cluster(const std::string& command) const {
    return test::run_process({test::source_dir() + "/tests/launcher/slurm_cluster.sh", path("slurm"), "sh", "-c",
                              "cd " + folder_.string() + "; " + command});
  }
};

TEST_F(DistSlurm, StartsTheWorkers) {
  const std::string workers = "srun -N 2 --ntasks-per-node=1 " + joined(train("run"), " ");
  const Finished f = on_cluster(workers + "; echo ended with $?; RINGMASTER_SECRET=$(cat " + secret() + ") " + workers);
  if (f.code == 77) GTEST_SKIP() << f.output;
  ASSERT_EQ(f.code, 0) << f.output;
  EXPECT_NE(f.output.find("RINGMASTER_SECRET is not set"), std::string::npos) << f.output;
  EXPECT_NE(f.output.find("ended with 1\n"), std::string::npos) << f.output;
  EXPECT_NE(f.output.find("2 processes on cpu"), std::string::npos) << f.output;
  expect_same_losses("run");
}

// The address of the rendezvous and the node ranks follow from Slurm's variables.
TEST_F(DistSlurm, StartsTheAgents) {
  const std::string file = secret();
  const auto agents = [&](const std::string& run, const std::vector<std::string>& more) {
    return "srun -N 2 --ntasks-per-node=1 " + joined(launch(run, words({"-n", "1", "--secret-file", file}, more)), " ");
  };
  const Finished f = on_cluster(agents("alone", {"--nnodes", "1"}) + "; echo ended with $?; " +
                                agents("alone", {"--rdzv-endpoint", "localhost:29400"}) + "; echo ended with $?; " +
                                agents("run", {}));
  if (f.code == 77) GTEST_SKIP() << f.output;
  ASSERT_EQ(f.code, 0) << f.output;
  EXPECT_NE(f.output.find("each would train alone"), std::string::npos) << f.output;
  for (const char* part : {"localhost is a loopback address", "srun job has 2 nodes"})
    EXPECT_NE(f.output.find(part), std::string::npos) << f.output;
  EXPECT_EQ(f.output.find("ended with 0"), std::string::npos) << f.output;
  EXPECT_NE(f.output.find("node 1 of 2"), std::string::npos) << f.output;
  EXPECT_NE(f.output.find("the ranks meet at n1:"), std::string::npos) << f.output;
  expect_same_losses("run");
}

// The job gets a signal before its time ends, as Slurm sends it: the run saves, and the job is requeued.
TEST_F(DistSlurm, TheBatchScriptSavesAndIsRequeued) {
  std::ofstream(folder_ / "t.yaml") << "include: " << test::source_dir() << "/configs/nanogpt_cpu.yaml\n";
  const std::vector<std::string> all = train("run");
  const std::string options =
      joined({all.begin() + 3, all.end()}, " ") + " train.steps=1000000 train.log_interval=1000";
  const std::string bin = test::fs::path(test::ring_binary()).parent_path().string();
  const Finished f =
      on_cluster("export PATH=" + bin + ":$PATH CONFIG=t.yaml NPROC=1 SECRET=" + secret() + " OPTIONS='" + options +
                 "'; job=$(sbatch --parsable --gpus-per-node=0 --output=out " + test::source_dir() +
                 "/configs/cluster/slurm.sbatch); "
                 "wait_for() { for i in $(seq 200); do eval \"$1\" && return; sleep 0.1; done; }; "
                 "wait_for '[ -d run/checkpoints/step-000000005 ]'; scancel --batch --signal=USR1 $job; "
                 "wait_for 'scontrol show job $job | grep -q Restarts=1'; scontrol show job $job; cat out");
  if (f.code == 77) GTEST_SKIP() << f.output;
  EXPECT_NE(f.output.find("Restarts=1"), std::string::npos) << f.output;
  EXPECT_NE(f.output.find("Exited with exit code 75"), std::string::npos) << f.output;
  EXPECT_EQ(ring({"checkpoint", "verify", path("run")}).code, 0);
}

}  // namespace
}  // namespace ring
