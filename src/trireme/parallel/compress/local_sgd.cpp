// Local SGD (Stich 2019): every so many steps copies take the mean of their weights. With compress.start it is
// post-local SGD (Lin et al. 2020); with compress.quadratic the interval follows the learning rate, H = (alpha /
// rate)^2 (Gu et al. 2024).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "trireme/parallel/compress/adam_moments.h"
#include "trireme/parallel/compress/local_updates.h"

namespace trireme::parallel {
namespace {

class LocalSgd final : public LocalUpdates {
 public:
  explicit LocalSgd(const ReducerParts& parts) : LocalUpdates(parts) {}

  void attach(optim::Optimizer& optimizer) override {
    LocalUpdates::attach(optimizer);
    if (config().average_moments) moments_.emplace(optimizer);
  }
  void add_state(nn::State& state) override {
    LocalUpdates::add_state(state);
    state.add_value(
        "reduce/local-sgd",
        [this] {
          return nlohmann::ordered_json{{"since", since_}};
        },
        [this](const nlohmann::ordered_json& value) { since_ = value.at("since").get<std::int64_t>(); });
  }

 protected:
  std::string method() const override {
    return fmt::format("mean of weights{} every {}{} steps", config().average_moments ? " and moments" : "",
                       config().quadratic > 0 ? "at least " : "", interval());
  }
  void start_from(std::span<nn::Param* const>) override { since_ = 0; }
  void after_step(std::int64_t /*number*/, double learning_rate) override {
    if (++since_ < steps_to_take(learning_rate)) return;
    since_ = 0;
    std::vector<at::Tensor> tensors;
    for (const nn::Param* param : params()) tensors.push_back(param->master);
    if (moments_) {
      for (const nn::StateTensor& entry : moments_->all().tensors()) tensors.push_back(entry.tensor);
    }
    at::Tensor flat = flatten_all(tensors);
    exchange().sum(flat);
    flat.div_(copies());
    unflatten_all(flat, tensors);
    for (nn::Param* param : params()) publish_changed(*param);
    count_round(flat.numel());
  }

 private:
  std::int64_t steps_to_take(double learning_rate) const {
    if (config().quadratic == 0 || learning_rate <= 0) return interval();
    const double by_rate = std::floor(std::pow(config().quadratic / learning_rate, 2));
    return std::max(interval(), static_cast<std::int64_t>(std::min(by_rate, 1e15)));
  }

  std::optional<AdamMoments> moments_;
  std::int64_t since_ = 0;
};

}  // namespace

std::unique_ptr<BucketReducer> make_local_sgd(const ReducerParts& parts) { return std::make_unique<LocalSgd>(parts); }

}  // namespace trireme::parallel
