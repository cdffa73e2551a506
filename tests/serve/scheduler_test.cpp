// The scheduler by itself: what a step is made of, and that no order of events breaks its accounts.
#include "trireme/serve/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <sstream>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/serve/scheduler_log.h"

namespace trireme::serve {
namespace {

using testing::HasSubstr;
using Ids = std::vector<RequestId>;

std::vector<std::int64_t> counting(std::int64_t tokens, std::int64_t first = 0) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(tokens));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = first + static_cast<std::int64_t>(i);
  return out;
}

/// Every sequence that samples gets `token`.
std::vector<StepResult> all_get(const StepPlan& plan, std::int64_t token, bool ends = false) {
  std::vector<StepResult> results(plan.sequences.size());
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (plan.sequences[i].samples) results[i] = {.tokens = {token}, .ends = ends};
  }
  return results;
}

StepPlan take_step(Scheduler& scheduler, std::int64_t token = 1) {
  const StepPlan plan = scheduler.plan();
  scheduler.complete(plan, all_get(plan, token));
  scheduler.check();
  return plan;
}

SchedulerOptions options_with(std::int64_t blocks) { return {.groups = {{.window = 0, .num_blocks = blocks}}}; }

TEST(Scheduler, TakesDecodeFirstAndFillsTheBudgetWithPrefill) {
  SchedulerOptions options = options_with(64);
  options.max_batch_tokens = 10;
  options.prefill_chunk = 8;
  Scheduler scheduler(options);
  ASSERT_FALSE(scheduler.add({.id = 0, .prompt = counting(3), .max_new_tokens = 4}));
  EXPECT_EQ(to_text(take_step(scheduler)), "0:0+3s admits 0");
  ASSERT_FALSE(scheduler.add({.id = 1, .prompt = counting(20, 50), .max_new_tokens = 2}));
  ASSERT_FALSE(scheduler.add({.id = 2, .prompt = counting(5, 90), .max_new_tokens = 1}));
  EXPECT_EQ(to_text(take_step(scheduler)), "0:3+1s 1:0+8 2:0+1 admits 1,2");
  EXPECT_EQ(to_text(take_step(scheduler)), "0:4+1s 1:8+8 2:1+1");
  EXPECT_EQ(to_text(take_step(scheduler)), "0:5+1s 1:16+4s 2:2+3s");  // the fourth token of 0, the only one of 2
  EXPECT_EQ(to_text(take_step(scheduler)), "1:20+1s");
  EXPECT_TRUE(scheduler.idle());
  EXPECT_EQ(scheduler.totals().prefill_tokens, 3 + 20 + 5);
  EXPECT_EQ(scheduler.totals().decode_tokens, 3 + 1);
}

TEST(Scheduler, RefusesAtOnceWhatCouldNeverFit) {
  Scheduler scheduler(options_with(4));
  EXPECT_THAT(scheduler.add({.id = 0, .prompt = counting(60), .max_new_tokens = 5}).value(),
              HasSubstr("60 tokens of prompt and 5 new ones take 5 blocks of the KV cache, which has 4"));
  EXPECT_TRUE(scheduler.idle());
  EXPECT_FALSE(scheduler.add({.id = 0, .prompt = counting(60), .max_new_tokens = 4}));
}

TEST(Scheduler, PreemptsTheYoungestAndRecomputesWhatItHadGenerated) {
  SchedulerOptions options = options_with(4);
  options.prefix_cache = false;
  Scheduler scheduler(options);
  ASSERT_FALSE(scheduler.add({.id = 0, .prompt = counting(30), .max_new_tokens = 20}));
  ASSERT_FALSE(scheduler.add({.id = 1, .prompt = counting(30), .max_new_tokens = 20}));
  EXPECT_EQ(to_text(take_step(scheduler, 7)), "0:0+30s 1:0+30s admits 0,1");
  EXPECT_EQ(to_text(take_step(scheduler, 8)), "0:30+1s 1:30+1s");
  EXPECT_EQ(to_text(take_step(scheduler, 9)), "0:31+1s 1:31+1s");
  EXPECT_EQ(to_text(take_step(scheduler, 10)), "0:32+1s preempts 1");  // the third block of 0
  EXPECT_EQ(scheduler.progress(1).generated, 3);
  for (int i = 4; i < 20; ++i) EXPECT_EQ(take_step(scheduler, 11).sequences.size(), 1u);
  EXPECT_FALSE(scheduler.contains(0));
  const StepPlan again = scheduler.plan();
  EXPECT_EQ(to_text(again), "1:0+33s admits 1");
  EXPECT_THAT(scheduler.tokens(1).subspan(30), testing::ElementsAre(7, 8, 9));
  scheduler.complete(again, all_get(again, 12));
  while (!scheduler.idle()) take_step(scheduler);
  EXPECT_EQ(scheduler.pool().count(0), (BlockPool::Count{.all = 4, .free = 4}));
}

TEST(Scheduler, WhatAPreemptedSequenceHadIsCopiedAwayAndBack) {
  SchedulerOptions options = options_with(4);
  options.prefix_cache = false;
  options.offload_blocks = 8;
  Scheduler scheduler(options);
  ASSERT_FALSE(scheduler.add({.id = 0, .prompt = counting(30), .max_new_tokens = 20}));
  ASSERT_FALSE(scheduler.add({.id = 1, .prompt = counting(20), .max_new_tokens = 6}));
  StepPlan preempting, restoring;
  std::int64_t prefill = 0;
  while (!scheduler.idle()) {
    const StepPlan plan = take_step(scheduler);
    scheduler.check();
    if (!plan.offloaded.empty()) preempting = plan;
    if (!plan.restored.empty()) restoring = plan;
    for (const PlannedSequence& one : plan.sequences) prefill += one.query_len > 1 ? one.query_len : 0;
  }
  ASSERT_EQ(preempting.offloaded.size(), 1u);
  EXPECT_EQ(preempting.offloaded[0].id, 1u);
  EXPECT_EQ(preempting.preempted, std::vector<RequestId>{1});
  ASSERT_EQ(restoring.restored.size(), 1u);
  EXPECT_EQ(restoring.restored[0].blocks.size(), preempting.offloaded[0].blocks.size());
  EXPECT_EQ(prefill, 50);  // each prompt once
  EXPECT_GT(scheduler.totals().restored_tokens, 20);
  EXPECT_EQ(scheduler.offloaded_blocks(), 0);
}

TEST(Scheduler, CancellingFreesTheBlocksAtOnce) {
  Scheduler scheduler(options_with(8));
  ASSERT_FALSE(scheduler.add({.id = 0, .prompt = counting(40), .max_new_tokens = 8}));
  const StepPlan plan = scheduler.plan();  // cancelled while the step is taken
  EXPECT_EQ(scheduler.pool().count(0).held, 3);
  EXPECT_TRUE(scheduler.cancel(0));
  EXPECT_EQ(scheduler.pool().count(0).held, 0);
  EXPECT_TRUE(scheduler.idle());
  EXPECT_EQ(scheduler.complete(plan, all_get(plan, 1)), Ids());
  EXPECT_FALSE(scheduler.cancel(0));
  scheduler.check();
}

TEST(Scheduler, FindsPrefixesOfFullBlocksAndOfItsOwnSaltOnly) {
  Scheduler scheduler(options_with(32));
  const auto run = [&](RequestId id, std::vector<std::int64_t> prompt, std::string salt = "") {
    EXPECT_FALSE(scheduler.add({.id = id, .prompt = std::move(prompt), .max_new_tokens = 1, .salt = std::move(salt)}));
    return to_text(take_step(scheduler));
  };
  EXPECT_EQ(run(0, counting(40)), "0:0+40s admits 0");
  EXPECT_EQ(run(1, counting(40)), "1:32+8s admits 1");
  EXPECT_EQ(run(2, counting(33)), "2:32+1s admits 2");
  EXPECT_EQ(run(3, counting(32)), "3:16+16s admits 3");  // the last token is always computed
  EXPECT_EQ(run(4, counting(40), "another"), "4:0+40s admits 4");
  EXPECT_EQ(run(5, counting(40), "another"), "5:32+8s admits 5");
  auto other = counting(40);
  other[20] = 99;
  EXPECT_EQ(run(6, other), "6:16+24s admits 6");
  EXPECT_EQ(scheduler.totals().cached_tokens, 32 + 32 + 16 + 32 + 16);
}

TEST(Scheduler, GeneratedTokensAreFoundToo) {
  Scheduler scheduler(options_with(32));
  ASSERT_FALSE(scheduler.add({.id = 0, .prompt = counting(10), .max_new_tokens = 30}));
  while (!scheduler.idle()) take_step(scheduler, 5);
  auto next = counting(10);  // the conversation goes on
  next.insert(next.end(), 40, 5);
  ASSERT_FALSE(scheduler.add({.id = 1, .prompt = next, .max_new_tokens = 1}));
  EXPECT_EQ(to_text(take_step(scheduler)), "1:32+18s admits 1");
}

TEST(Scheduler, SlidingWindowsHoldTheirWindowAndFindPrefixesByIt) {
  SchedulerOptions options;
  options.groups = {{.window = 0, .num_blocks = 64}, {.window = 20, .num_blocks = 6}};
  options.prefill_chunk = 16;
  Scheduler scheduler(options);
  ASSERT_FALSE(scheduler.add({.id = 0, .prompt = counting(200), .max_new_tokens = 8}));
  while (!scheduler.idle()) {
    take_step(scheduler);
    EXPECT_LE(scheduler.pool().count(1).held, 4);
  }
  // All of it is in the first group; the second has the last blocks, which is all that token 200 sees.
  ASSERT_FALSE(scheduler.add({.id = 1, .prompt = counting(200), .max_new_tokens = 1}));
  EXPECT_EQ(to_text(take_step(scheduler)), "1:192+8s admits 1");
  // Half way the window's blocks are gone, so nothing can be used.
  ASSERT_FALSE(scheduler.add({.id = 2, .prompt = counting(100), .max_new_tokens = 1}));
  EXPECT_EQ(to_text(take_step(scheduler)), "2:0+16 admits 2");
}

TEST(Scheduler, DraftsAreVerifiedAndCostNoBlocks) {
  SchedulerOptions options = options_with(3);
  options.prefix_cache = false;
  Scheduler scheduler(options);
  ASSERT_FALSE(scheduler.add({.id = 0, .prompt = counting(14), .max_new_tokens = 6}));
  take_step(scheduler, 1);
  scheduler.propose(0, {2, 3, 4, 5, 6, 7, 8});
  StepPlan plan = scheduler.plan();
  EXPECT_EQ(to_text(plan), "0:14+5d4s");  // one token is left for the step's own
  EXPECT_THAT(scheduler.tokens(0).subspan(14), testing::ElementsAre(1, 2, 3, 4, 5));
  scheduler.complete(plan, std::vector<StepResult>{{.tokens = {2, 3, 9}}});
  EXPECT_THAT(scheduler.tokens(0).subspan(14), testing::ElementsAre(1, 2, 3, 9));
  EXPECT_EQ(to_text(scheduler.plan()), "0:17+1s");
  EXPECT_EQ(scheduler.totals().accepted_drafts, 2);
  // Drafts stand back where a block is missing for them; the sequence itself does not.
  ASSERT_FALSE(scheduler.add({.id = 1, .prompt = counting(15), .max_new_tokens = 1}));
  take_step(scheduler);
  scheduler.propose(0, {1});
  EXPECT_EQ(scheduler.plan().sequences.size(), 1u);
}

/// One random life of a scheduler: requests that share prefixes, cancels, drafts, few blocks.
struct Trace {
  std::string log;
  std::int64_t steps = 0;
  std::uint64_t collisions = 0;
};

Trace random_trace(std::uint64_t seed, bool keep_log) {
  const Random random(seed, "trace");
  std::uint64_t draws = 0;
  const auto below = [&](std::uint64_t n) { return static_cast<std::int64_t>(random.below(n, draws++)); };
  SchedulerOptions options;
  options.groups = {{.window = 0, .num_blocks = 4 + below(12)}};
  if (below(3) == 0) options.groups.push_back({.window = 1 + below(40), .num_blocks = 4 + below(8)});
  options.max_batch_tokens = 1 + below(60);
  options.max_sequences = 1 + below(6);
  options.prefill_chunk = 1 + below(40);
  options.prefix_cache = below(4) != 0;
  options.hash_bits = below(2) == 0 ? 64 : static_cast<int>(below(9));
  if (options.groups.size() == 1 && below(2) == 0) options.offload_blocks = 1 + below(12);
  std::map<RequestId, std::int64_t> elsewhere;  // blocks of each sequence in other memory
  std::ostringstream log;
  LoggedScheduler logged(options, keep_log ? &log : nullptr);
  const Scheduler& scheduler = logged.scheduler();

  struct Wanted {
    std::int64_t prompt = 0, max_new = 0;
    std::int64_t served = 0;  // tokens computed for it, without a preemption
  };
  std::map<RequestId, Wanted> alive;
  const auto requests = static_cast<RequestId>(1 + below(8));
  RequestId next = 0;
  std::int64_t quiet = 0, cancelled = 0, ended = 0, refused = 0;
  Trace trace;
  while (next < requests || !alive.empty()) {
    while (next < requests && (alive.empty() || below(3) == 0)) {
      Wanted wanted{.prompt = 1 + below(90), .max_new = 1 + below(30)};
      auto prompt = counting(wanted.prompt);
      if (below(2) == 0) prompt[static_cast<std::size_t>(below(static_cast<std::uint64_t>(wanted.prompt)))] = 1000;
      const auto why = logged.add(
          {.id = next, .prompt = prompt, .max_new_tokens = wanted.max_new, .salt = below(4) == 0 ? "s" : ""});
      if (why) {
        ++refused;
      } else {
        alive.emplace(next, wanted);
      }
      ++next;
    }
    if (alive.empty()) continue;
    if (below(12) == 0) {
      auto victim = alive.begin();
      std::advance(victim, below(alive.size()));
      EXPECT_TRUE(logged.cancel(victim->first));
      elsewhere.erase(victim->first);
      alive.erase(victim);
      ++cancelled;
      scheduler.check();
      continue;
    }
    for (const auto& [id, wanted] : alive) {
      if (below(8) == 0) logged.propose(id, counting(below(5)));
    }
    const RequestId oldest = alive.begin()->first;
    const StepPlan plan = logged.plan();
    scheduler.check();
    for (const BlockCopy& copy : plan.offloaded) {
      EXPECT_TRUE(elsewhere.emplace(copy.id, static_cast<std::int64_t>(copy.blocks.size())).second);
      EXPECT_EQ(copy.first, 0);
    }
    for (const BlockCopy& copy : plan.restored) {  // what it gets back is there, and goes to its own blocks
      EXPECT_EQ(copy.first + static_cast<std::int64_t>(copy.blocks.size()), elsewhere[copy.id]);
      const auto& table = scheduler.tables(copy.id)[0].blocks;
      EXPECT_TRUE(std::equal(copy.blocks.begin(), copy.blocks.end(), table.begin() + copy.first));
    }
    for (const RequestId id : plan.admitted) {
      if (scheduler.is_running(id)) elsewhere.erase(id);
    }
    std::int64_t all_elsewhere = 0;
    for (const auto& [id, blocks] : elsewhere) all_elsewhere += blocks;
    EXPECT_EQ(all_elsewhere, scheduler.offloaded_blocks());
    EXPECT_LE(plan.tokens, options.max_batch_tokens);
    EXPECT_LE(static_cast<std::int64_t>(plan.sequences.size()), options.max_sequences);
    std::vector<StepResult> results(plan.sequences.size());
    std::int64_t tokens = 0;
    std::set<RequestId> seen;
    for (std::size_t i = 0; i < plan.sequences.size(); ++i) {
      const PlannedSequence& planned = plan.sequences[i];
      EXPECT_TRUE(seen.insert(planned.id).second);
      tokens += planned.query_len;
      // The blocks that the step reads and writes are there.
      for (std::size_t group = 0; group < options.groups.size(); ++group) {
        const nn::BlockTable& table = scheduler.tables(planned.id)[group];
        EXPECT_GE(table.capacity(), planned.context_len + planned.query_len);
        for (std::size_t block = 0; block < table.blocks.size(); ++block) {
          EXPECT_EQ(table.blocks[block] == nn::kNoBlock, static_cast<std::int64_t>(block) < table.freed);
        }
      }
      alive.at(planned.id).served += planned.query_len;
      if (!planned.samples) continue;
      const auto count = 1 + below(static_cast<std::uint64_t>(planned.drafts + 1));
      results[i] = {.tokens = counting(count, 500 + below(2)), .ends = below(20) == 0};
    }
    EXPECT_EQ(tokens, plan.tokens);
    // The oldest request is in every step: nobody starves.
    EXPECT_TRUE(seen.contains(oldest)) << to_text(plan);
    ++trace.steps;
    quiet = plan.sequences.empty() ? quiet + 1 : 0;
    EXPECT_EQ(quiet, 0) << "a step without work";
    std::map<RequestId, Scheduler::Progress> progress;
    for (const auto& planned : plan.sequences) progress[planned.id] = scheduler.progress(planned.id);
    for (const RequestId id : logged.complete(plan, results)) {
      const auto planned = std::ranges::find(plan.sequences, id, &PlannedSequence::id);
      const auto& last = results[static_cast<std::size_t>(planned - plan.sequences.begin())];
      const Wanted& wanted = alive.at(id);
      const std::int64_t generated = progress[id].generated + static_cast<std::int64_t>(last.tokens.size());
      EXPECT_TRUE(generated == wanted.max_new || last.ends);
      if (progress[id].preemptions == 0 && scheduler.totals().drafts == 0) {
        EXPECT_EQ(wanted.served, wanted.prompt - progress[id].cached_tokens + generated - 1);
      }
      alive.erase(id);
      ++ended;
    }
    scheduler.check();
    if (testing::Test::HasFailure() || trace.steps > 20000) break;
  }
  EXPECT_LE(trace.steps, 20000) << "it does not end";
  EXPECT_EQ(ended + cancelled + refused, static_cast<std::int64_t>(requests));
  EXPECT_TRUE(scheduler.idle());
  for (std::size_t group = 0; group < options.groups.size(); ++group) {
    EXPECT_EQ(scheduler.pool().count(group).held, 0);
  }
  trace.collisions = scheduler.pool().collisions();
  trace.log = log.str();
  return trace;
}

TEST(Scheduler, KeepsItsAccountsOverRandomTraces) {
  // TRIREME_TRACES=100000 takes 14 s of a core.
  const char* const asked = std::getenv("TRIREME_TRACES");
  const std::uint64_t traces = asked ? std::strtoull(asked, nullptr, 10) : 20000;
  std::uint64_t collisions = 0;
  for (std::uint64_t seed = 0; seed < traces; ++seed) {
    collisions += random_trace(seed, false).collisions;
    if (HasFailure()) FAIL() << "trace " << seed;
  }
  EXPECT_GT(collisions, traces);  // hashes of few bits
}

TEST(Scheduler, ALogGivesTheSamePlansAgain) {
  for (std::uint64_t seed = 1000; seed < 1060; ++seed) {
    const Trace trace = random_trace(seed, true);
    std::istringstream log(trace.log);
    EXPECT_EQ(replay(log).plans, trace.steps);
  }
  std::istringstream wrong(
      "options tokens 8 sequences 2 chunk 8 prefix 1 hash 64 offload 0 groups 0x9\n"
      "add 0 max 2 salt x prompt 1,2,3\nplan 0:0+2s admits 0\n");
  EXPECT_THROW(replay(wrong), InternalError);
  std::istringstream torn("options tokens 8 sequences 2 chunk 8 prefix 1 hash 64 offload 0 groups 0x9\nadd 0 max");
  EXPECT_THROW(replay(torn), ConfigError);
}

TEST(Scheduler, AForcedCollisionIsComparedAndNotTaken) {
  for (const int bits : {0, 1, 8, 64}) {
    SchedulerOptions options = options_with(64);
    options.hash_bits = bits;
    Scheduler scheduler(options);
    RequestId id = 0;
    // Many prompts of one block each and a token more; then all of them again, all found.
    for (int round = 0; round < 2; ++round) {
      for (std::int64_t prompt = 0; prompt < 40; ++prompt) {
        ASSERT_FALSE(scheduler.add({.id = id, .prompt = counting(17, 100 * prompt), .max_new_tokens = 1}));
        EXPECT_EQ(take_step(scheduler).sequences.at(0).context_len, round == 0 ? 0 : 16) << bits << " bits";
        ++id;
      }
    }
    if (bits == 0) {
      EXPECT_GT(scheduler.pool().collisions(), 40u * 39 / 2);
    }
    if (bits == 64) {
      EXPECT_EQ(scheduler.pool().collisions(), 0u);
    }
  }
}

}  // namespace
}  // namespace trireme::serve
