// Calls that do not match, and calls that make no sense, end in errors that say what was called by whom.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/outcomes.h"
#include "tests/comm/reference.h"

namespace trireme::comm {
namespace {

using testing::AllOf;
using testing::HasSubstr;

void make_call(Group& group, const Case& c) {
  Trial trial(c, group.size(), group.rank());
  trial.start(group).wait();
}

/// As it stands in errors.
std::string described_call(const Case& c, int ranks) {
  CallKey key{.op = c.op, .type = c.type, .reduce = c.reduce, .algorithm = c.algorithm, .root = c.root};
  key.count = is_blocked(c.op) ? c.count * static_cast<std::size_t>(ranks) : c.count;
  return describe(key);
}

struct Pair {
  const char* what;
  Case usual, odd;
};

constexpr int kRanks = 3;

/// The rank `odd` calls something else; every rank must hear of it, with both calls.
void expect_both_named(const Pair& pair, int odd) {
  SCOPED_TRACE(fmt::format("{}: rank {} calls {}, the others {}", pair.what, odd, described_call(pair.odd, kRanks),
                           described_call(pair.usual, kRanks)));
  const Outcomes outcomes = run_to_the_end(
      kRanks,
      [&](Rank& self) {
        self.world().barrier().wait();
        make_call(self.world(), self.rank() == odd ? pair.odd : pair.usual);
        self.world().barrier().wait();
      },
      test_options(10s));
  for (const Outcome& outcome : outcomes.ranks) {
    EXPECT_THAT(outcome.error, AllOf(HasSubstr("do not agree"),
                                     HasSubstr(fmt::format("rank {} called {}", odd, described_call(pair.odd, kRanks))),
                                     HasSubstr("called " + described_call(pair.usual, kRanks)),
                                     HasSubstr("group 'world'"), HasSubstr(pair.what)));
    EXPECT_LT(outcome.took, kSoon);
  }
  EXPECT_THAT(outcomes.rethrown, HasSubstr("do not agree"));
}

Case with(Case c, auto change) {
  change(c);
  return c;
}

TEST(Mismatches, OfDirectCallsNameBothSides) {
  for (const std::size_t count : {4, 3000, 50'000}) {  // in the slots, and by pointers
    const Case reduce{.op = Op::kAllReduce, .algorithm = Algorithm::kDirect, .count = count};
    const Case broadcast{.op = Op::kBroadcast, .algorithm = Algorithm::kDirect, .count = count};
    const Pair pairs[] = {
        {"operations", reduce, broadcast},
        {"counts", reduce, with(reduce, [](Case& c) { c.count *= 2; })},
        {"types", reduce, with(reduce, [](Case& c) { c.type = DType::kI32; })},
        {"reductions", reduce, with(reduce, [](Case& c) { c.reduce = Reduce::kMax; })},
        {"roots", broadcast, with(broadcast, [](Case& c) { c.root = 2; })},
    };
    for (const Pair& pair : pairs) {
      for (const int odd : {0, 1, 2}) expect_both_named(pair, odd);
    }
  }
}

TEST(Mismatches, OfRoutinesNameBothSides) {
  for (const std::size_t count : {4, 50'000}) {  // copied on their way, and taken from the sender
    const Case ring{.op = Op::kAllReduce, .algorithm = Algorithm::kRing, .count = count};
    const Case gather{.op = Op::kAllGather, .algorithm = Algorithm::kRing, .count = count};
    const Pair pairs[] = {
        {"counts", ring, with(ring, [](Case& c) { c.count += 1; })},
        {"types", ring, with(ring, [](Case& c) { c.type = DType::kI32; })},
        {"reductions", ring, with(ring, [](Case& c) { c.reduce = Reduce::kMin; })},
        {"operations", ring, gather},
    };
    for (const Pair& pair : pairs) {
      for (const int odd : {0, 1, 2}) expect_both_named(pair, odd);
    }
  }
}

TEST(Mismatches, OfRootsAreNoticedAtTheNextCallAtTheLatest) {
  // Two ranks that each take themselves for the root may both get by with messages that are copied on their way.
  for (const Algorithm algorithm : {Algorithm::kDirect, Algorithm::kBinomial, Algorithm::kLinear}) {
    for (const std::size_t count : {4, 50'000}) {
      const Outcomes outcomes = run_to_the_end(
          2,
          [&](Rank& self) {
            make_call(self.world(),
                      {.op = Op::kBroadcast, .algorithm = algorithm, .count = count, .root = self.rank()});
            make_call(self.world(), {.op = Op::kAllReduce, .count = 1});
          },
          test_options(kPatience));
      for (const Outcome& outcome : outcomes.ranks) {
        EXPECT_NE(outcome.error, "") << cost::name(algorithm) << ' ' << count;
        EXPECT_THAT(outcome.error,
                    testing::AnyOf(HasSubstr("roots"), HasSubstr("an earlier call of this group differed"),
                                   HasSubstr("instead")));
      }
    }
  }
}

TEST(Mismatches, OfMessagesNameBothSides) {
  const Outcomes outcomes = run_to_the_end(
      2,
      [](Rank& self) {
        float values[4] = {};
        if (self.rank() == 0) {
          self.world().send({values, 4, DType::kF32}, 1, 7).wait();
          self.world().barrier().wait();
        } else {
          self.world().recv({values, 4, DType::kI32}, 0, 7).wait();
        }
      },
      test_options(10s));
  for (const Outcome& outcome : outcomes.ranks) {
    EXPECT_THAT(outcome.error, AllOf(HasSubstr("rank 0 called send of 4 x f32"), HasSubstr("4 x i32"),
                                     HasSubstr("types i32 and f32")));
  }
}

TEST(Mismatches, OfUnevenBlocksAreNoticed) {
  for (const Algorithm algorithm : {Algorithm::kDirect, Algorithm::kRing}) {
    const Outcomes outcomes = run_to_the_end(
        2,
        [&](Rank& self) {
          // The same total, cut differently.
          const std::size_t counts[] = {self.rank() == 0 ? 3u : 2u, self.rank() == 0 ? 2u : 3u};
          float in[5] = {}, out[5] = {};
          const auto mine = counts[self.rank()];
          self.world()
              .all_gather_v({in, mine, DType::kF32}, {out, 5, DType::kF32}, counts,
                            {.algorithm = algorithm, .deadline = {}})
              .wait();
          self.world().barrier().wait();
        },
        test_options(10s));
    for (const Outcome& outcome : outcomes.ranks)
      EXPECT_THAT(outcome.error, HasSubstr("the sizes of the blocks differ"));
  }
}

TEST(Mismatches, OfWhatIsSentAndExpectedInAllToAllAreNoticed) {
  for (const Algorithm algorithm : {Algorithm::kDirect, Algorithm::kPairwise, Algorithm::kLinear}) {
    const Outcomes outcomes = run_to_the_end(
        3,
        [&](Rank& self) {
          std::vector<std::size_t> send(3, 2), recv(3, 2);
          if (self.rank() == 1) recv[2] = 1;
          float in[6] = {}, out[6] = {};
          self.world()
              .all_to_all_v({in, 6, DType::kF32}, {out, self.rank() == 1 ? 5u : 6u, DType::kF32}, send, recv,
                            {.algorithm = algorithm, .deadline = {}})
              .wait();
          self.world().barrier().wait();
        },
        test_options(10s));
    EXPECT_THAT(outcomes.rethrown, HasSubstr("rank 2 sent 8 bytes where rank 1 expected 4")) << cost::name(algorithm);
    for (const Outcome& outcome : outcomes.ranks) EXPECT_THAT(outcome.error, HasSubstr("rank 2 sent 8 bytes"));
  }
}

struct BadCall {
  const char* expected;
  std::function<Work(Group&)> call;
};

float memory[64];
Buffer floats(std::size_t count) { return {memory, count, DType::kF32}; }
Buffer nothing(std::size_t count) { return {nullptr, count, DType::kF32}; }
CallOptions by(Algorithm algorithm) { return {.algorithm = algorithm, .deadline = {}}; }

TEST(BadArguments, AreRefusedInWordsAndLeaveTheGroupUsable) {
  const std::vector<std::size_t> two{1, 2}, three{1, 2, 3};
  const BadCall calls[] = {
      {"the output has 3 elements, but 4 are needed on 3 ranks",
       [](Group& g) { return g.all_reduce(floats(4), floats(3), Reduce::kSum); }},
      {"the input has 4 elements, but 6 are needed on 3 ranks",
       [](Group& g) { return g.reduce_scatter(floats(4), floats(2), Reduce::kSum); }},
      {"the output has 4 elements, but 6 are needed", [](Group& g) { return g.all_gather(floats(2), floats(4)); }},
      {"the input has 4 elements, but 3 are needed", [](Group& g) { return g.all_to_all(floats(4), floats(4)); }},
      {"2 block sizes for 3 ranks", [&](Group& g) { return g.all_gather_v(floats(1), floats(3), two); }},
      {"block sizes for 3 ranks", [&](Group& g) { return g.all_to_all_v(floats(6), floats(3), three, two); }},
      {"but 6 are needed",
       [&](Group& g) {
         return g.reduce_scatter_v(floats(5), floats(1 + static_cast<std::size_t>(g.rank())), three, Reduce::kSum);
       }},
      {"root 3 is not in 0..2", [](Group& g) { return g.broadcast(floats(4), 3); }},
      {"root -1 is not in 0..2", [](Group& g) { return g.reduce(floats(4), floats(4), Reduce::kSum, -1); }},
      {"null pointer", [](Group& g) { return g.all_reduce(nothing(4), Reduce::kSum); }},
      {"null pointer", [](Group& g) { return g.all_reduce(nothing(4), floats(4), Reduce::kSum); }},
      {"null pointer", [](Group& g) { return g.all_reduce(floats(4), nothing(4), Reduce::kSum); }},
      {"null pointer", [](Group& g) { return g.broadcast(nothing(4), 0); }},
      {"null pointer", [](Group& g) { return g.all_gather(nothing(4), floats(12)); }},
      {"null pointer", [](Group& g) { return g.reduce(nothing(4), floats(4), Reduce::kSum, 0); }},
      {"null pointer", [](Group& g) { return g.send(nothing(4), 0); }},
      {"null pointer", [](Group& g) { return g.recv(nothing(4), 0); }},
      {"input of type f32 and output of type i32",
       [](Group& g) {
         return g.all_reduce(floats(4), Buffer{memory, 4, DType::kI32}, Reduce::kSum);
       }},
      {"a buffer on a GPU",
       [](Group& g) {
         return g.all_reduce(Buffer{memory, 4, DType::kF32, {DeviceKind::kCuda, 0}}, Reduce::kSum);
       }},
      {"rank 3 must be in 0..2", [](Group& g) { return g.send(floats(1), 3); }},
      {"tag -1 in 0..", [](Group& g) { return g.recv(floats(1), 0, -1); }},
      {"there is no algorithm 'bruck' for it here",
       [](Group& g) { return g.all_reduce(floats(4), Reduce::kSum, by(Algorithm::kBruck)); }},
      {"there is no algorithm 'native' for it here",
       [](Group& g) { return g.all_reduce(floats(4), Reduce::kSum, by(Algorithm::kNative)); }},
      {"with algorithm hierarchical: all ranks are on one node",
       [](Group& g) { return g.all_reduce(floats(4), Reduce::kSum, by(Algorithm::kHierarchical)); }},
      {"bruck needs blocks of one length",
       [&](Group& g) {
         return g.all_gather_v(floats(1 + static_cast<std::size_t>(g.rank())), floats(6), three, by(Algorithm::kBruck));
       }},
      {"not 3; use bruck or ring",
       [](Group& g) { return g.all_gather(floats(1), floats(3), by(Algorithm::kRecursiveDoubling)); }},
  };
  for (const BadCall& bad : calls) {
    const std::string found = check_on(on_threads(), 3, [&](Rank& self) -> std::string {
      for (int i = 0; i < 2; ++i) {
        try {
          bad.call(self.world()).wait();
          return "nothing was thrown";
        } catch (const CommError& error) {
          const std::string text = error.what();
          if (text.find(bad.expected) == std::string::npos || text.find("group 'world'") == std::string::npos)
            return text;
        }
        // All ranks were refused alike: the group goes on with the same numbers.
        for (const Algorithm algorithm : self.world().algorithms(Collective::kAllReduce)) {
          std::string wrong = try_case(self.world(), {.op = Op::kAllReduce, .algorithm = algorithm, .count = 9});
          if (!wrong.empty()) return wrong;
        }
      }
      return {};
    });
    EXPECT_EQ(found, "") << bad.expected;
  }
}

TEST(BadArguments, ComeWithHintsThatWork) {
  run_ranks(
      3,
      [](Rank& self) {
        try {
          self.world().all_reduce(floats(0), Reduce::kSum, by(Algorithm::kPairwise)).wait();
          ADD_FAILURE() << "nothing was thrown";
        } catch (const CommError& error) {
          const std::string prefix = "choose one of auto, ";
          ASSERT_EQ(error.hint().substr(0, prefix.size()), prefix);
          std::istringstream names(error.hint().substr(prefix.size()));
          for (std::string text; std::getline(names >> std::ws, text, ',');) {
            const auto algorithm = cost::parse_algorithm(text);
            ASSERT_TRUE(algorithm.has_value()) << text;
            self.world().all_reduce(floats(0), Reduce::kSum, by(*algorithm)).wait();
          }
        }
      },
      test_options());
}

}  // namespace
}  // namespace trireme::comm
