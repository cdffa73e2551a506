// Elastic averaging (Zhang, Choromanska, LeCun 2015): a centre c and copies x_i pull each other:
//   x_i <- x_i - alpha (x_i - c),  c <- c + alpha sum of (x_i - c),  every so many steps
// With momentum in the optimizer it is EAMSGD. Every copy keeps the centre; it is in checkpoints as reduce/centre.
#include <fmt/format.h>

#include "trireme/parallel/compress/local_updates.h"

namespace trireme::parallel {
namespace {

class ElasticAveraging final : public LocalUpdates {
 public:
  explicit ElasticAveraging(const ReducerParts& parts) : LocalUpdates(parts) {}

  void add_state(nn::State& state) override {
    LocalUpdates::add_state(state);
    local().add_equal(state, "reduce/centre", centre_);
  }
  std::int64_t bytes() const override { return 2 * LocalUpdates::bytes(); }

 protected:
  std::string method() const override {
    return fmt::format("copies and their centre move {:.4g} of the way towards each other every {} steps", alpha(),
                       interval());
  }
  void start_from(std::span<nn::Param* const> params) override {
    if (centre_.empty()) centre_ = local().like_masters();
    for (std::size_t i = 0; i < params.size(); ++i) centre_[i].copy_(params[i]->master);
  }
  void after_step(std::int64_t number, double /*learning_rate*/) override {
    if (number % interval() != 0) return;
    std::vector<at::Tensor> apart;
    for (std::size_t i = 0; i < centre_.size(); ++i) apart.push_back(params()[i]->master.sub(centre_[i]));
    at::Tensor flat = flatten_all(apart);
    for (std::size_t i = 0; i < apart.size(); ++i) {
      params()[i]->master.sub_(apart[i], alpha());
      publish_changed(*params()[i]);
    }
    exchange().sum(flat);
    unflatten_all(flat, apart);
    for (std::size_t i = 0; i < apart.size(); ++i) centre_[i].add_(apart[i], alpha());
    count_round(flat.numel());
  }

 private:
  double alpha() const { return config().elastic_rate.value_or(0.9 / copies()); }

  std::vector<at::Tensor> centre_;
};

}  // namespace

std::unique_ptr<BucketReducer> make_elastic_averaging(const ReducerParts& parts) {
  return std::make_unique<ElasticAveraging>(parts);
}

}  // namespace trireme::parallel
