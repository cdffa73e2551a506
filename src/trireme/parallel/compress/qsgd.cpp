// QSGD (Alistarh et al. 2017): each copy says its gradient in random levels, all gather all codes and add them up.
// Right in the mean, so there is no residual. Draws are a function of seed, parameter, shard, step, copy and element.
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <cmath>

#include "trireme/parallel/compress/compressed_reducer.h"
#include "trireme/parallel/compress/gpu_codes.h"
#include "trireme/parallel/compress/qsgd_code.h"
#include "trireme/parallel/compress/term_types.h"

namespace trireme::parallel {
namespace {

class Qsgd final : public CompressedReducer {
 public:
  explicit Qsgd(const ReducerParts& parts) : CompressedReducer(parts) {}

 protected:
  std::string method() const override {
    return fmt::format("{} levels of the {} norm of {} elements, {} -> all-gather -> decompress, sum", config().levels,
                       config().norm == spec::QsgdNorm::kMax ? "max" : "L2", config().bucket_size,
                       config().coding == spec::QsgdCoding::kFixed
                           ? fmt::format("{} bits each", fixed_bits(config().levels))
                           : std::string("Elias omega codes"));
  }
  /// With Elias codes as much as the last step took, of which no more is known before.
  double term_bytes(const Term& term) const override {
    const auto elements = static_cast<double>(term.elements());
    const auto width = static_cast<double>(c10::elementSize(term.bucket->gradient_type));
    const double scales = std::ceil(elements / static_cast<double>(config().bucket_size)) * width;
    const double bits = config().coding == spec::QsgdCoding::kFixed ? fixed_bits(config().levels) : elias_bits_;
    return (term.copies - 1) * (elements * bits / 8 + scales);
  }
  void reduce(std::span<Term> terms) override {
    if (terms.empty()) return;
    if (on_gpu()) return reduce_on_gpu(terms);
    with_element_type(terms.front().data, [&](auto type) { reduce_as<decltype(type)>(terms); });
  }

 private:
  void reduce_on_gpu(std::span<Term> terms) {
    SlotLayout layout;
    std::vector<GpuQsgdCode> codes;
    for (const Term& term : terms)
      codes.emplace_back(term.elements(), config(), static_cast<std::int64_t>(term.data.element_size()), layout);
    at::Tensor mine = bytes_like(terms.front().data, {layout.bytes()});
    for (std::size_t i = 0; i < terms.size(); ++i) {
      const QsgdDraws draws =
          qsgd_draws(options().seed, terms[i].param->name, shard(*terms[i].param), step(), exchange().copy());
      const at::Tensor errors = codes[i].encode(terms[i].data, draws.words(), mine).sum(0);
      note_error(terms[i], errors[0], errors[1]);
    }
    const at::Tensor all = exchange().all_gather(mine);
    for (std::size_t i = 0; i < terms.size(); ++i) codes[i].decode_sum(all, terms[i].data);
  }

  template <typename T>
  void reduce_as(std::span<Term> terms) {
    Message mine;
    std::int64_t bits = 0, elements = 0;
    for (const Term& term : terms) {
      bits += encode_qsgd(data_of<T>(term.data), term.elements(), config(),
                          qsgd_draws(options().seed, term.param->name, shard(*term.param), step(), exchange().copy()),
                          mine);
      elements += term.elements();
    }
    elias_bits_ = static_cast<double>(bits) / static_cast<double>(elements);
    const bool fixed = config().coding == spec::QsgdCoding::kFixed;
    const std::vector<Message> all = fixed ? exchange().all_gather_equal(mine) : exchange().all_gather(mine);
    std::vector<at::Tensor> own;
    for (const Term& term : terms) own.push_back(term.data.clone());
    for (Term& term : terms) term.data.zero_();
    for (std::size_t copy = 0; copy < all.size(); ++copy) {
      MessageReader reader(all[copy]);
      for (std::size_t i = 0; i < terms.size(); ++i) {
        const bool is_mine = static_cast<int>(copy) == exchange().copy();
        at::Tensor decoded = is_mine ? at::zeros_like(terms[i].data) : terms[i].data;
        add_qsgd(reader, terms[i].elements(), config(), data_of<T>(decoded));
        if (!is_mine) continue;
        terms[i].data.add_(decoded);
        note_error(terms[i], squared(decoded.sub_(own[i])), squared(own[i]));
      }
    }
  }
  double elias_bits_ = 4;
};

}  // namespace

QsgdDraws qsgd_draws(std::uint64_t seed, const std::string& name, int shard, std::int64_t step, int copy) {
  return QsgdDraws(Random(seed, fmt::format("qsgd/{}/{}/{}/{}", name, shard, step, copy)));
}

std::unique_ptr<BucketReducer> make_qsgd(const ReducerParts& parts) { return std::make_unique<Qsgd>(parts); }

}  // namespace trireme::parallel
