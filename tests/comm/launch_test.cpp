#include "trireme/comm/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "trireme/base/env.h"
#include "trireme/base/error.h"

namespace trireme::comm {
namespace {

using testing::HasSubstr;
using Variables = std::map<std::string, std::string, std::less<>>;

Launch detect(const Variables& variables) {
  return detect_launch([&](std::string_view name) -> std::optional<std::string> {
    // The real lookup stops at a name that --help does not list; so must this one.
    EXPECT_TRUE(std::ranges::any_of(env_table(), [&](const EnvVariable& row) { return row.name == name; })) << name;
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

Variables merge(Variables first, const Variables& second) {
  for (const auto& [name, value] : second) first[name] = value;
  return first;
}

const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "3"},
                            {"OMPI_COMM_WORLD_SIZE", "8"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                            {"PMIX_RANK", "3"}};
const Variables kSlurm = {{"SLURM_PROCID", "5"},
                          {"SLURM_NTASKS", "7"},
                          {"SLURM_LOCALID", "1"},
                          {"SLURM_STEP_ID", "2"},
                          {"SLURM_JOB_ID", "4321"},
                          {"SLURM_NODEID", "2"},
                          {"SLURM_STEP_NODELIST", "gpu[007-009,020]"},
                          {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"}};
const Variables kTorchrun = {{"RANK", "6"},
                             {"WORLD_SIZE", "16"},
                             {"LOCAL_RANK", "2"},
                             {"LOCAL_WORLD_SIZE", "4"},
                             {"MASTER_ADDR", "node7"},
                             {"MASTER_PORT", "29500"},
                             {"TORCHELASTIC_RUN_ID", "none"},
                             {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
const Variables kByHand = {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "29500"}};

constexpr int kSlurmPort = 20'000 + (4321 * 7 + 2) % 10'000;

struct Row {
  const char* name;
  Variables variables;
  Launch expected;
  friend void PrintTo(const Row& row, std::ostream* out) { *out << row.name; }
};

class DetectLaunch : public testing::TestWithParam<Row> {};

TEST_P(DetectLaunch, TellsWhoThisProcessIs) {
  EXPECT_EQ(detect(GetParam().variables), GetParam().expected) << to_text(detect(GetParam().variables));
}

const Launch kOpenMpiLaunch = {.kind = Launch::Kind::kMpi, .rank = 3, .ranks = 8, .local_rank = 1, .local_ranks = 2};
const Launch kSlurmLaunch = {.kind = Launch::Kind::kSlurm,
                             .rank = 5,
                             .ranks = 7,
                             .local_rank = 1,
                             .local_ranks = 2,
                             .control_host = "gpu007",
                             .control_port = kSlurmPort};
Launch with_pmix(Launch launch) {
  launch.pmix = true;
  return launch;
}
const Launch kTorchrunLaunch = {.kind = Launch::Kind::kTorchrun,
                                .rank = 6,
                                .ranks = 16,
                                .local_rank = 2,
                                .local_ranks = 4,
                                .control_host = "node7",
                                .control_port = 29501};

INSTANTIATE_TEST_SUITE_P(
    Launchers, DetectLaunch,
    testing::Values(
        Row{"Nothing", {}, {}}, Row{"EmptyIsUnset", {{"RANK", ""}, {"PMI_RANK", ""}}, {}},
        Row{"OpenMpi", kOpenMpi, kOpenMpiLaunch},
        Row{"Pmi",
            {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}},
            {.kind = Launch::Kind::kMpi, .rank = 0, .ranks = 2, .local_rank = -1, .local_ranks = -1}},
        Row{"PmiWithLocalNumbers",
            {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}},
            {.kind = Launch::Kind::kMpi, .rank = 1, .ranks = 2, .local_rank = 1, .local_ranks = 2}},
        Row{"Slurm", kSlurm, kSlurmLaunch},
        Row{"SlurmWithPmix", merge(kSlurm, {{"PMIX_RANK", "5"}}), with_pmix(kSlurmLaunch)},
        Row{"SlurmWithAChosenPlace",
            merge(kSlurm, {{"MASTER_ADDR", "gpu007-ib"}, {"MASTER_PORT", "1234"}}),
            {.kind = Launch::Kind::kSlurm,
             .rank = 5,
             .ranks = 7,
             .local_rank = 1,
             .local_ranks = 2,
             .control_host = "gpu007-ib",
             .control_port = 1234}},
        Row{"SlurmWithoutDetails",
            {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"SLURM_STEP_ID", "0"}},
            {.kind = Launch::Kind::kSlurm, .rank = 0, .ranks = 1, .local_rank = -1, .local_ranks = -1}},
        Row{"SlurmScriptIsNoTask", {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_JOB_ID", "4321"}}, {}},
        Row{"SlurmInteractiveShellIsNoTask",
            {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_STEP_ID", "4294967290"}},
            {}},
        Row{"Torchrun", kTorchrun, kTorchrunLaunch},
        Row{"ByHand",
            kByHand,
            {.kind = Launch::Kind::kTorchrun,
             .rank = 1,
             .ranks = 2,
             .local_rank = -1,
             .local_ranks = -1,
             .control_host = "10.0.0.1",
             .control_port = 29500}},
        // Nobody to meet: RANK and WORLD_SIZE alone, as notebooks and debuggers set them, are a run in one process.
        Row{"OneByHand", {{"RANK", "0"}, {"WORLD_SIZE", "1"}}, {}},
        Row{"OneOfTorchrun",
            merge(kTorchrun, {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}}),
            {}},
        // One launcher inside another: the inner one started this very process.
        Row{"TorchrunUnderSlurm", merge(kSlurm, kTorchrun), kTorchrunLaunch},
        Row{"TorchrunUnderOpenMpi", merge(kOpenMpi, kTorchrun), kTorchrunLaunch},
        Row{"OpenMpiUnderSlurm", merge(kSlurm, kOpenMpi), kOpenMpiLaunch},
        Row{"OpenMpiUnderSlurmsPmi", merge({{"PMI_RANK", "0"}, {"PMI_SIZE", "4"}}, kOpenMpi), kOpenMpiLaunch},
        Row{"AgreeingByHand", merge(kOpenMpi, {{"RANK", "3"}, {"WORLD_SIZE", "8"}}), kOpenMpiLaunch}),
    [](const auto& row) { return row.param.name; });

TEST(SlurmsLists, FindsTheFirstHostOfSlurmsLists) {
  const auto host = [](const std::string& list) {
    return detect(merge(kSlurm, {{"SLURM_STEP_NODELIST", list}})).control_host;
  };
  EXPECT_EQ(host("solo"), "solo");
  EXPECT_EQ(host("a1,b2"), "a1");
  EXPECT_EQ(host("cn[12]"), "cn12");
  EXPECT_EQ(host("cn[03,05-07],gpu1"), "cn03");
  EXPECT_EQ(host("rack[2-4]node[01-16].site"), "rack2node01.site");
  EXPECT_EQ(host("broken[1"), "");
}

TEST(TorchrunsPort, ThePortAfterTheLastIsTheOneBefore) {
  EXPECT_EQ(detect(merge(kTorchrun, {{"MASTER_PORT", "65535"}})).control_port, 65534);
}

struct Wrong {
  const char* name;
  Variables variables;
  std::vector<std::string> named;  // what the message must contain
  Variables fix;                   // the hint, applied; an empty value unsets
  friend void PrintTo(const Wrong& wrong, std::ostream* out) { *out << wrong.name; }
};

class WrongLaunch : public testing::TestWithParam<Wrong> {};

TEST_P(WrongLaunch, NamesTheVariablesAndTheHintHelps) {
  try {
    const Launch launch = detect(GetParam().variables);
    FAIL() << "was taken for " << to_text(launch);
  } catch (const ConfigError& error) {
    for (const auto& part : GetParam().named) EXPECT_THAT(error.message(), HasSubstr(part));
    for (const auto& [name, value] : GetParam().fix) EXPECT_THAT(error.hint(), HasSubstr(name));
  }
  EXPECT_NO_THROW(detect(merge(GetParam().variables, GetParam().fix)));
}

INSTANTIATE_TEST_SUITE_P(
    Mistakes, WrongLaunch,
    testing::Values(
        Wrong{"HalfOpenMpi",
              {{"OMPI_COMM_WORLD_RANK", "3"}},
              {"OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE is not set"},
              {{"OMPI_COMM_WORLD_RANK", ""}}},
        Wrong{"HalfPmi", {{"PMI_SIZE", "3"}}, {"PMI_RANK is not set", "PMI_SIZE=3"}, {{"PMI_SIZE", ""}}},
        Wrong{"OtherHalfOfOpenMpi",
              {{"OMPI_COMM_WORLD_SIZE", "2"}},
              {"OMPI_COMM_WORLD_RANK is not set", "OMPI_COMM_WORLD_SIZE=2"},
              {{"OMPI_COMM_WORLD_SIZE", ""}}},
        Wrong{"HalfByHand", {{"WORLD_SIZE", "3"}}, {"RANK is not set", "WORLD_SIZE=3"}, {{"WORLD_SIZE", ""}}},
        Wrong{"SlurmWithoutCount",
              {{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "0"}},
              {"SLURM_NTASKS is not set"},
              {{"SLURM_PROCID", ""}}},
        Wrong{"NoPlaceToMeet",
              {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}},
              {"RANK=0", "MASTER_ADDR=a", "MASTER_PORT is not set"},
              {{"MASTER_PORT", "29500"}}},
        Wrong{"NotANumber", merge(kByHand, {{"RANK", "one"}}), {"RANK", "\"one\""}, {{"RANK", "1"}}},
        Wrong{"TrailingText", merge(kByHand, {{"WORLD_SIZE", "2 "}}), {"WORLD_SIZE", "\"2 \""}, {{"WORLD_SIZE", "2"}}},
        Wrong{"Hexadecimal", merge(kByHand, {{"WORLD_SIZE", "0x2"}}), {"WORLD_SIZE", "\"0x2\""}, {{"WORLD_SIZE", "2"}}},
        Wrong{"Negative", merge(kByHand, {{"RANK", "-1"}}), {"RANK", "\"-1\""}, {{"RANK", "1"}}},
        Wrong{"Huge", merge(kByHand, {{"RANK", "99999999999"}}), {"RANK", "99999999999"}, {{"RANK", "1"}}},
        Wrong{"RankTooHigh",
              merge(kByHand, {{"RANK", "2"}}),
              {"RANK=2", "WORLD_SIZE=2"},
              {{"RANK", ""}, {"WORLD_SIZE", ""}}},
        Wrong{"NoRanks",
              {{"PMI_RANK", "0"}, {"PMI_SIZE", "0"}},
              {"PMI_RANK=0", "PMI_SIZE=0"},
              {{"PMI_RANK", ""}, {"PMI_SIZE", ""}}},
        Wrong{"LocalRankTooHigh",
              merge(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_RANK", "2"}}),
              {"OMPI_COMM_WORLD_LOCAL_RANK=2", "OMPI_COMM_WORLD_LOCAL_SIZE=2"},
              {{"OMPI_COMM_WORLD_LOCAL_RANK", ""}, {"OMPI_COMM_WORLD_LOCAL_SIZE", ""}}},
        Wrong{"MoreLocalThanAll",
              merge(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "9"}}),
              {"OMPI_COMM_WORLD_LOCAL_SIZE=9", "OMPI_COMM_WORLD_SIZE=8"},
              {{"OMPI_COMM_WORLD_LOCAL_RANK", ""}, {"OMPI_COMM_WORLD_LOCAL_SIZE", ""}}},
        Wrong{
            "NoSuchPort", merge(kByHand, {{"MASTER_PORT", "70000"}}), {"MASTER_PORT=70000"}, {{"MASTER_PORT", "1024"}}},
        Wrong{"ByHandAgainstOpenMpi",
              merge(kOpenMpi, {{"RANK", "0"}, {"WORLD_SIZE", "1"}}),
              {"RANK=0", "WORLD_SIZE=1", "OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=8"},
              {{"RANK", ""}, {"WORLD_SIZE", ""}}},
        Wrong{"ByHandAgainstSlurm", merge(kSlurm, {{"RANK", "0"}}), {"RANK=0", "SLURM_PROCID=5"}, {{"RANK", ""}}},
        Wrong{"PmixAgainstSlurm",
              merge(kSlurm, {{"PMIX_RANK", "4"}}),
              {"PMIX_RANK=4", "SLURM_PROCID=5"},
              {{"PMIX_RANK", ""}}},
        Wrong{"PmixAlone", {{"PMIX_RANK", "0"}}, {"PMIX_RANK=0"}, {{"PMIX_RANK", ""}}}),
    [](const auto& row) { return row.param.name; });

TEST(Launch, ReadsAsASentence) {
  EXPECT_EQ(to_text(Launch{}), "rank 0 of 1 (no launcher), local rank 0 of 1");
  EXPECT_EQ(to_text(kTorchrunLaunch), "rank 6 of 16 (torchrun), local rank 2 of 4, control plane at node7:29501");
}

}  // namespace
}  // namespace trireme::comm
