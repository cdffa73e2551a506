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
  void begin_step(std::int64_t step) override {
    CompressedReducer::begin_step(step);
    if (coded_elements_ > 0) elias_bits_ = static_cast<double>(coded_bits_) / static_cast<double>(coded_elements_);
    coded_bits_ = coded_elements_ = 0;
  }
  Stages stages(ExchangeLanes& lanes, std::span<Term> terms) override {
    if (on_gpu()) return {[this, &lanes, terms] { return reduce_on_gpu(lanes.first, terms), comm::Work(); }};
    const auto type = terms.front().bucket->gradient_type;
    return with_element_type(type, [&](auto zero) { return stages_as<decltype(zero)>(lanes, terms); });
  }

 private:
  void reduce_on_gpu(CopyExchange& exchange, std::span<Term> terms) {
    SlotLayout layout;
    std::vector<GpuQsgdCode> codes;
    for (const Term& term : terms)
      codes.emplace_back(term.elements(), config(), static_cast<std::int64_t>(term.data.element_size()), layout);
    at::Tensor mine = bytes_like(terms.front().data, {layout.bytes()});
    for (std::size_t i = 0; i < terms.size(); ++i) {
      const QsgdDraws draws =
          qsgd_draws(options().seed, terms[i].param->name, shard(*terms[i].param), step(), exchange.copy());
      const at::Tensor errors = codes[i].encode(terms[i].data, draws.words(), mine).sum(0);
      note_error(terms[i], errors[0], errors[1]);
    }
    const at::Tensor all = exchange.all_gather(mine);
    for (std::size_t i = 0; i < terms.size(); ++i) codes[i].decode_sum(all, terms[i].data);
  }

  template <typename T>
  Stages stages_as(ExchangeLanes& lanes, std::span<Term> terms) {
    struct Letter {
      Mail mail;
      std::vector<std::int64_t> lengths;
    };
    const auto letter = std::make_shared<Letter>();  // shared by the stages
    const auto end = [=, this, &lanes] {
      add_all<T>(terms, letter->mail, lanes.first.copy());
      return comm::Work();
    };
    if (config().coding == spec::QsgdCoding::kFixed) {
      const auto begin = [=, this, &lanes] {
        code<T>(terms, lanes.first.copy(), letter->mail.out);
        letter->mail.lengths.assign(static_cast<std::size_t>(lanes.first.copies()), letter->mail.out.size());
        return lanes.first.start_all_gather(letter->mail);
      };
      return {begin, end};
    }
    const auto tell = [=, this, &lanes] {
      code<T>(terms, lanes.first.copy(), letter->mail.out);
      return lanes.first.start_lengths(static_cast<std::int64_t>(letter->mail.out.size()), letter->lengths);
    };
    const auto send = [=, &lanes] {
      letter->mail.lengths.assign(letter->lengths.begin(), letter->lengths.end());
      return lanes.second.start_all_gather(letter->mail);
    };
    return {tell, send, end};
  }
  template <typename T>
  void code(std::span<Term> terms, int copy, Message& mine) {
    for (const Term& term : terms) {
      coded_bits_ += encode_qsgd(data_of<T>(term.data), term.elements(), config(),
                                 qsgd_draws(options().seed, term.param->name, shard(*term.param), step(), copy), mine);
      coded_elements_ += term.elements();
    }
  }
  template <typename T>
  void add_all(std::span<Term> terms, const Mail& mail, int me) {
    std::vector<at::Tensor> own;
    for (Term& term : terms) {
      own.push_back(term.data.clone());
      term.data.zero_();
    }
    int copy = 0;
    for (MessageReader& reader : readers_of(mail)) {
      for (std::size_t i = 0; i < terms.size(); ++i) {
        const bool is_mine = copy == me;
        at::Tensor decoded = is_mine ? at::zeros_like(terms[i].data) : terms[i].data;
        add_qsgd(reader, terms[i].elements(), config(), data_of<T>(decoded));
        if (!is_mine) continue;
        terms[i].data.add_(decoded);
        note_error(terms[i], squared(decoded.sub_(own[i])), squared(own[i]));
      }
      ++copy;
    }
  }

  std::int64_t coded_bits_ = 0, coded_elements_ = 0;  // of this step
  double elias_bits_ = 4;
};

}  // namespace

QsgdDraws qsgd_draws(std::uint64_t seed, const std::string& name, int shard, std::int64_t step, int copy) {
  return QsgdDraws(Random(seed, fmt::format("qsgd/{}/{}/{}/{}", name, shard, step, copy)));
}

std::unique_ptr<BucketReducer> make_qsgd(const ReducerParts& parts) { return std::make_unique<Qsgd>(parts); }

}  // namespace trireme::parallel
