#include "trireme/serve/pipeline_step.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/device/tensor_buffer.h"

namespace trireme::serve {
namespace {

at::Tensor indices_of(const std::vector<std::int64_t>& numbers) {
  at::Tensor out = at::empty({static_cast<std::int64_t>(numbers.size())}, at::kLong);
  std::ranges::copy(numbers, out.mutable_data_ptr<std::int64_t>());
  return out;
}

}  // namespace

std::vector<MicroRange> deal_out(std::span<const std::int64_t> query_lens, std::int64_t micros) {
  const std::int64_t all = std::accumulate(query_lens.begin(), query_lens.end(), std::int64_t{0});
  std::vector<MicroRange> out;
  std::int64_t before = 0;
  for (std::size_t i = 0; i < query_lens.size(); ++i) {
    // The micro-batch that the middle of the sequence's tokens falls into.
    const std::int64_t micro =
        std::min(micros - 1, (2 * before + query_lens[i]) * micros / std::max<std::int64_t>(1, 2 * all));
    before += query_lens[i];
    const bool begins = out.empty() || micro > static_cast<std::int64_t>(out.size()) - 1;
    if (begins) {
      out.push_back({i, 1});
    } else {
      ++out.back().count;
    }
  }
  return out;
}

at::Tensor pipeline_logits(models::Model& stage, nn::KvCache& cache, const PipelineRanks& ranks,
                           const PipelineStep& step,
                           const std::function<void(nn::KvBatch& batch, nn::Context& context)>& prepare) {
  comm::Group& group = *ranks.group;
  const bool first = group.rank() == 0, last = group.rank() == group.size() - 1;
  std::vector<std::int64_t> lens;
  for (const nn::SequenceStep& one : step.sequences) lens.push_back(one.query_len);
  const at::ScalarType type = stage.params.begin()->value.scalar_type();
  const at::Tensor logits =
      at::empty({static_cast<std::int64_t>(step.wanted.size()), stage.shape.vocab_size}, at::kFloat);
  std::vector<comm::Work> sends;
  std::vector<at::Tensor> sent;
  std::int64_t row = 0;
  std::size_t wanted = 0;
  for (const MicroRange& micro : deal_out(lens, step.decodes ? ranks.decode_micros : ranks.micros)) {
    nn::KvBatch batch = nn::make_kv_batch(cache, step.sequences.subspan(micro.first, micro.count));
    std::vector<std::int64_t> rows;
    const std::size_t from = wanted;
    for (; wanted < step.wanted.size() && step.wanted[wanted] < row + batch.tokens; ++wanted) {
      rows.push_back(step.wanted[wanted] - row);
    }
    // The head wants a row; nobody will look at it.
    batch.last_rows = indices_of(rows.empty() ? std::vector<std::int64_t>{0} : rows);
    nn::Context context;
    context.kv_batch = &batch;
    context.sequence = nn::packed_sequence(batch);
    prepare(batch, context);
    at::Tensor x;
    if (first) {
      const auto ids = step.ids.subspan(static_cast<std::size_t>(row), static_cast<std::size_t>(batch.tokens));
      x = indices_of({ids.begin(), ids.end()}).unsqueeze(0);
    } else {
      x = at::empty({1, batch.tokens, stage.shape.hidden_size}, at::TensorOptions(type));
      group.recv(device::to_buffer(x), group.rank() - 1).wait();
    }
    if (last) {
      const at::Tensor made = stage.next_logits(std::move(x), context);
      if (!rows.empty())
        logits.narrow(0, static_cast<std::int64_t>(from), static_cast<std::int64_t>(rows.size())).copy_(made);
    } else {
      nn::Tensors travelling{std::move(x)};
      for (models::NamedLayer& entry : stage.layers) {
        travelling = entry.layer->forward(std::move(travelling), context, nullptr);
      }
      TRIREME_CHECK(travelling.size() == 1, "{} tensors leave a stage", travelling.size());
      sent.push_back(travelling[0].contiguous());
      sends.push_back(group.send(device::to_const_buffer(sent.back()), group.rank() + 1));
    }
    row += batch.tokens;
  }
  for (comm::Work& work : sends) work.wait();
  if (step.wanted.empty()) return {};
  at::Tensor everywhere = logits;
  group.broadcast(device::to_buffer(everywhere), group.size() - 1).wait();
  return everywhere;
}

}  // namespace trireme::serve
