// Speculation by draft models and by modules of multi-token prediction, and the rejection rule.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/models/support.h"
#include "trireme/base/error.h"
#include "trireme/nn/multi_token.h"
#include "trireme/serve/draft_model.h"
#include "trireme/serve/engine.h"
#include "trireme/serve/multi_token_drafter.h"
#include "trireme/serve/speculative_sampling.h"

namespace trireme::serve {
namespace {

using Tokens = std::vector<std::vector<std::int64_t>>;

std::unique_ptr<models::Model> drafting_model(const spec::ModelShape& shape, std::uint64_t seed) {
  auto model = models::build(shape);
  models::fill(*model, nn::Precision::kFp32, seed);
  return model;
}

spec::ModelShape with_modules() {
  spec::ModelShape shape = models::tiny_shape(spec::Family::kLlama);
  shape.mtp_depth = 1;
  return shape;
}

/// Prompts of mixed lengths, some of which begin alike.
std::vector<EngineRequest> drafted_requests(double temperature, const spec::ModelShape& shape, bool stops = true) {
  const Random random(17, "drafted");
  std::vector<EngineRequest> requests;
  for (std::size_t i = 0; i < 10; ++i) {
    EngineRequest request{.id = i, .max_new_tokens = 1 + static_cast<std::int64_t>(random.below(14, 7 * i))};
    const std::size_t like = i % 3 == 2 ? i - 1 : i;
    for (std::size_t at = 0; at < 1 + random.below(28, 7 * i + 1); ++at) {
      request.prompt.push_back(static_cast<std::int64_t>(
          random.below(static_cast<std::uint64_t>(shape.vocab_size), 1000 * (like + 1) + at)));
    }
    request.sampling = {.temperature = temperature, .seed = 3 + i % 2};
    if (i % 4 == 1) request.sampling.top_p = 0.9;
    if (i % 4 == 2) request.sampling.frequency_penalty = 0.5;
    if (i % 4 == 3) request.sampling.top_k = 9;
    request.choice = i;
    if (stops && i % 5 == 0) request.stop_tokens = {7, 8};
    requests.push_back(std::move(request));
  }
  return requests;
}

Tokens continued(InferenceEngine& engine, std::vector<EngineRequest> requests) {
  Tokens tokens(requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i) {
    requests[i].on_token = [&, i](const GeneratedToken& token) { tokens[i].push_back(token.token); };
    EXPECT_EQ(engine.add(std::move(requests[i])), std::nullopt);
  }
  while (!engine.idle()) {
    engine.step();
    engine.scheduler().check();
  }
  return tokens;
}

const EngineOptions kSmall{.max_sequences = 6, .prefill_chunk = 13, .kv_tokens = 1024};
/// So few blocks that sequences are preempted.
const EngineOptions kCrowded{.max_batch_tokens = 40, .max_sequences = 6, .prefill_chunk = 13, .kv_tokens = 7 * 16};

struct Accepted {
  double share = 0;
  std::int64_t steps = 0;
};
Accepted accepted(const InferenceEngine& engine) {
  const Scheduler::Totals& totals = engine.scheduler().totals();
  return {totals.drafts == 0 ? 0 : static_cast<double>(totals.accepted_drafts) / static_cast<double>(totals.drafts),
          totals.steps};
}

TEST(DraftModel, GivesTheVeryTokensThatComeWithoutIt) {
  const spec::ModelShape shape = models::tiny_shape(spec::Family::kLlama);
  const auto model = drafting_model(shape, 3);
  const auto same = drafting_model(shape, 3);      // as good as a draft model can be
  const auto another = drafting_model(shape, 11);  // and one that has learnt nothing of it
  const auto windowed = drafting_model(models::tiny_shape(spec::Family::kMistral), 5);
  for (const double temperature : {0.0, 0.7, 1.5}) {
    for (const EngineOptions& options : {kSmall, kCrowded}) {
      const auto requests = drafted_requests(temperature, shape);
      InferenceEngine plain(*model, options);
      const Tokens expected = continued(plain, requests);
      for (models::Model* draft : {same.get(), another.get(), windowed.get()}) {
        SCOPED_TRACE(temperature);
        InferenceEngine engine(*model, options);
        engine.set_drafter(draft_model(*draft, shape, {.depth = 3, .kv_tokens = 1024, .chunk = 16}));
        EXPECT_EQ(continued(engine, requests), expected);
        const Accepted got = accepted(engine);
        if (draft == same.get()) {
          EXPECT_GT(got.share, 0.9);  // what is drafted behind a stop token is not taken
          if (options.kv_tokens == kSmall.kv_tokens) {
            EXPECT_LT(got.steps, accepted(plain).steps * 3 / 4);
          }
        } else {
          EXPECT_LT(got.share, 0.7);
        }
      }
    }
  }
}

TEST(DraftModel, ThatIsTheModelItselfIsAlwaysRight) {
  const spec::ModelShape shape = models::tiny_shape(spec::Family::kLlama);
  const auto model = drafting_model(shape, 3), same = drafting_model(shape, 3);
  for (const double temperature : {0.0, 0.7, 1.5}) {
    for (const EngineOptions& options : {kSmall, kCrowded}) {
      InferenceEngine engine(*model, options);
      engine.set_drafter(draft_model(*same, shape, {.depth = 3, .kv_tokens = 1024, .chunk = 16}));
      continued(engine, drafted_requests(temperature, shape, false));
      EXPECT_EQ(accepted(engine).share, 1) << "at temperature " << temperature << " it draws with the model's numbers";
    }
  }
}

/// With a share a of drafts accepted, a step of one draft gives 1 + a tokens.
TEST(DraftModel, OfDepthOneGivesOneTokenAndTheAcceptedShareAStep) {
  const spec::ModelShape shape = models::tiny_shape(spec::Family::kLlama);
  const auto model = drafting_model(shape, 3), another = drafting_model(shape, 11);
  for (models::Model* draft : {model.get(), another.get()}) {
    InferenceEngine engine(*model, kSmall);
    engine.set_drafter(draft_model(*draft, shape, {.depth = 1, .kv_tokens = 1024, .chunk = 16}));
    EngineRequest request{.id = 1, .prompt = {1, 2, 3}, .max_new_tokens = 40, .sampling = {.temperature = 1.5}};
    const Tokens tokens = continued(engine, {request});
    const Scheduler::Totals& totals = engine.scheduler().totals();
    // Behind the prompt's step; the last token of all may be left without a draft.
    const std::int64_t decodes = totals.steps - 1, drafts = totals.drafts;
    EXPECT_TRUE(drafts == decodes || drafts == decodes - 1) << drafts << " drafts in " << decodes << " steps";
    EXPECT_EQ(static_cast<std::int64_t>(tokens[0].size()) - 1, decodes + totals.accepted_drafts);
    if (draft == model.get()) {
      EXPECT_EQ(totals.accepted_drafts, drafts);
    } else {
      EXPECT_LT(totals.accepted_drafts, drafts);
    }
  }
}

TEST(DraftModel, WithoutBlocksLeavesSequencesToThemselves) {
  const spec::ModelShape shape = models::tiny_shape(spec::Family::kLlama);
  const auto model = drafting_model(shape, 3);
  const auto requests = drafted_requests(0.7, shape);
  InferenceEngine plain(*model, kSmall), engine(*model, kSmall);
  engine.set_drafter(draft_model(*model, shape, {.depth = 3, .kv_tokens = 3 * 16, .chunk = 5}));
  EXPECT_EQ(continued(engine, requests), continued(plain, requests));
}

TEST(DraftModel, OfAnotherVocabularyIsRefused) {
  spec::ModelShape shape = models::tiny_shape(spec::Family::kLlama);
  const auto draft = drafting_model(shape, 1);
  shape.vocab_size = 62;
  try {
    draft_model(*draft, shape, {});
    ADD_FAILURE() << "61 tokens guess 62";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("61 tokens and the model 62"));
  }
}

TEST(MultiTokenDrafter, GivesTheVeryTokensThatComeWithoutIt) {
  const auto model = drafting_model(with_modules(), 3);
  for (const double temperature : {0.0, 0.7, 1.5}) {
    for (const EngineOptions& options : {kSmall, kCrowded}) {
      SCOPED_TRACE(temperature);
      const auto requests = drafted_requests(temperature, model->shape);
      InferenceEngine plain(*model, options);
      const Tokens expected = continued(plain, requests);
      for (const std::size_t depth : {1, 3}) {
        InferenceEngine engine(*model, options);
        engine.set_drafter(multi_token_drafter(*model, engine.kv_cache(), {.depth = depth}));
        EXPECT_EQ(continued(engine, requests), expected);
        EXPECT_GT(engine.scheduler().totals().drafts, 0);
      }
    }
  }
}

/// What the module says of whole texts, as training runs it, is what it drafts with a cache, chunks and rejections.
TEST(MultiTokenDrafter, DraftsWhatTheModuleSaysOfTheWholeText) {
  const auto model = drafting_model(with_modules(), 3);
  std::int64_t checked = 0;
  class Watched final : public Drafter {
   public:
    Watched(std::unique_ptr<Drafter> inner, models::Model& model, std::int64_t& checked)
        : inner_(std::move(inner)), model_(model), checked_(checked) {}
    std::size_t depth() const override { return inner_->depth(); }
    bool observes() const override { return true; }
    void observe(const StepSeen& seen) override { inner_->observe(seen); }
    void ended(RequestId id) override { inner_->ended(id); }
    std::vector<Drafts> draft(std::span<const DraftRequest> requests) override {
      auto drafts = inner_->draft(requests);
      for (std::size_t i = 0; i < requests.size(); ++i) {
        if (drafts[i].tokens.empty()) continue;
        EXPECT_EQ(drafts[i].tokens[0], module_says(requests[i].tokens));
        ++checked_;
      }
      return drafts;
    }

   private:
    /// The likeliest token two behind the last but one, by the module on whole rows.
    std::int64_t module_says(std::span<const std::int64_t> tokens) {
      std::vector<std::int64_t> ids(tokens.begin(), tokens.end());
      const at::Tensor whole = models::as_tensor({ids});
      nn::Context context = models::context_for(whole);
      nn::Tensors x{whole};
      nn::MultiTokenPrediction* modules = nullptr;
      for (models::NamedLayer& entry : model_.layers) {
        if ((modules = dynamic_cast<nn::MultiTokenPrediction*>(entry.layer.get())) != nullptr) break;
        x = entry.layer->forward(std::move(x), context, nullptr);
      }
      const std::int64_t length = whole.size(1) - 1;  // the last token has none behind it
      nn::Context shorter = models::context_for(whole.narrow(1, 0, length));
      const at::Tensor hidden = modules->next_hidden(0, whole.narrow(1, 1, length).contiguous(),
                                                     x[0].narrow(1, 0, length).contiguous(), shorter);
      return modules->logits(0, hidden, shorter)[0][length - 1].argmax().item<std::int64_t>();
    }
    std::unique_ptr<Drafter> inner_;
    models::Model& model_;
    std::int64_t& checked_;
  };
  auto requests = drafted_requests(0, model->shape);
  for (EngineRequest& request : requests) request.sampling = {};
  EngineOptions options = kSmall;
  options.prefix_cache = false;  // a found block's last key may have had another token behind it
  InferenceEngine engine(*model, options);
  engine.set_drafter(
      std::make_unique<Watched>(multi_token_drafter(*model, engine.kv_cache(), {.depth = 2}), *model, checked));
  continued(engine, requests);
  EXPECT_GT(checked, 20);
}

TEST(MultiTokenDrafter, OfAModelWithoutModulesIsRefused) {
  const auto model = drafting_model(models::tiny_shape(spec::Family::kLlama), 3);
  InferenceEngine engine(*model, kSmall);
  EXPECT_THROW(multi_token_drafter(*model, engine.kv_cache(), {}), ConfigError);
}

Distribution drawn_distribution(const Random& random, std::uint64_t from, std::size_t zeros) {
  Distribution out;
  double total = 0;
  for (std::int64_t token = 0; token < 8; ++token) {
    const double weight = random.uniform(from + static_cast<std::uint64_t>(token));
    if (static_cast<std::size_t>(token) < zeros) continue;
    out.tokens.push_back(token);
    out.probabilities.push_back(weight);
    total += weight;
  }
  for (double& one : out.probabilities) one /= total;
  return out;
}

TEST(RejectionRule, GivesTheModelsDistributionExactly) {
  const Random random(5, "rule");
  for (std::uint64_t i = 0; i < 300; ++i) {
    const Distribution p = drawn_distribution(random, 100 * i, i % 4),
                       q = drawn_distribution(random, 100 * i + 50, i % 3);
    const Distribution residual = residual_of(p, q);
    double accepted = 0;
    for (const std::int64_t token : q.tokens) accepted += q.of(token) * acceptance(p, q, token);
    for (std::int64_t token = 0; token < 8; ++token) {
      const double kept = q.of(token) > 0 ? q.of(token) * acceptance(p, q, token) : 0;
      EXPECT_NEAR(kept + (1 - accepted) * residual.of(token), p.of(token), 1e-12);
    }
  }
}

TEST(RejectionRule, DistributionsAreWhatSamplesAreDrawnFrom) {
  std::vector<float> logits;
  const Random random(6, "logits");
  for (std::uint64_t i = 0; i < 50; ++i) logits.push_back(static_cast<float>(3 * random.normal(i)));
  for (const SamplingParams& params :
       {SamplingParams{.temperature = 0}, SamplingParams{.temperature = 1},
        SamplingParams{.temperature = 0.6, .top_k = 7}, SamplingParams{.temperature = 1.3, .top_p = 0.8},
        SamplingParams{.temperature = 1, .min_p = 0.05}}) {
    const Distribution of = distribution_of(logits, params);
    std::map<std::int64_t, int> counts;
    constexpr int kDraws = 40000;
    const Draws draws(/*seed=*/8, /*choice=*/0);
    for (std::uint64_t i = 0; i < kDraws; ++i) ++counts[sample(logits, params, draws.noise(i))];
    for (std::int64_t token = 0; token < 50; ++token) {
      const double p = of.of(token);
      EXPECT_NEAR(static_cast<double>(counts[token]) / kDraws, p, 5 * std::sqrt(p * (1 - p) / kDraws));
    }
  }
}

/// First and second tokens of many draws, with a draft model and without, are distributed alike.
TEST(RejectionRule, OfTheEngineKeepsTheDistribution) {
  spec::ModelShape shape = models::tiny_shape(spec::Family::kLlama);
  shape.vocab_size = 8;
  const auto model = drafting_model(shape, 3), draft = drafting_model(shape, 4);
  constexpr std::size_t kRequests = 3000;
  const auto counted = [&](bool speculates) {
    std::vector<EngineRequest> requests;
    for (std::size_t i = 0; i < kRequests; ++i) {
      requests.push_back(
          {.id = i, .prompt = {1, 2}, .max_new_tokens = 4, .sampling = {.temperature = 1, .seed = 9}, .choice = i});
    }
    EngineOptions options{.max_sequences = 64, .kv_tokens = 64 * 16, .speculation = SpeculationRule::kRejection};
    InferenceEngine engine(*model, options);
    if (speculates) {
      engine.set_drafter(
          draft_model(*draft, shape, {.depth = 3, .kv_tokens = 64 * 32, .rule = SpeculationRule::kRejection}));
    }
    std::map<std::pair<std::int64_t, std::int64_t>, double> counts;  // of the third token by the second
    for (const auto& tokens : continued(engine, requests)) counts[{tokens[1], tokens[2]}] += 1;
    if (speculates) {
      EXPECT_GT(accepted(engine).share, 0.1);
      EXPECT_LT(accepted(engine).share, 0.95);
    }
    return counts;
  };
  auto without = counted(false), with = counted(true);
  double squares = 0, cells = 0;
  for (std::int64_t a = 0; a < 8; ++a) {
    for (std::int64_t b = 0; b < 8; ++b) {
      const double x = without[{a, b}], y = with[{a, b}];
      if (x + y < 10) continue;
      squares += (x - y) * (x - y) / (x + y);  // two samples of one size: chi squared
      ++cells;
    }
  }
  EXPECT_GT(cells, 10);
  EXPECT_LT(squares, cells + 5 * std::sqrt(2 * cells));
}

}  // namespace
}  // namespace trireme::serve
