#include "trireme/pipeline/passes.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/device/memory_pool.h"
#include "trireme/nn/flops.h"
#include "trireme/pipeline/micro_rows.h"

namespace trireme::pipeline {

using schedule::Instruction;
using schedule::Op;

namespace {

/// The head makes its weights' gradients while it has the logits in memory: in the forward pass. They must not fall
/// into an earlier step than the micro's others.
void check_head(const schedule::Schedule& table, int rank) {
  int step = 0;
  std::vector<int> forward_in(static_cast<std::size_t>(table.micros), -1);
  for (const Instruction& it : table.ranks[static_cast<std::size_t>(rank)]) {
    if (it.op == Op::kOptimizerStep) ++step;
    for (int i = 0; i < forward_count(it) && it.chunk == table.last_chunk(); ++i) {
      forward_in[static_cast<std::size_t>(it.micro + i)] = step;
    }
    if (!does_weight_gradient(it) || backward_chunk(it) != table.last_chunk()) continue;
    const int micro = backward_micro(it);
    if (forward_in[static_cast<std::size_t>(micro)] == step) continue;
    throw ConfigError(
        fmt::format("schedule {}, rank {}: between the forward and the backward of micro {} through the last chunk "
                    "stands an optimizer step, but the head's gradients arise in the forward",
                    table.name, rank, micro),
        "let each backward of the last chunk follow its forward before the next O");
  }
}

/// Losses and FLOPs of a pass over two micros go with the first of them.
void hand_over(nn::Context& from, nn::Context& to) {
  to.losses.insert(to.losses.end(), from.losses.begin(), from.losses.end());
  to.flops += std::exchange(from.flops, 0.0);
  to.recomputed_flops += std::exchange(from.recomputed_flops, 0.0);
  from.losses.clear();
}

}  // namespace

Passes::Passes(const schedule::Schedule& table, int rank, std::span<const Chunk> chunks,
               const BoundaryTensors& boundaries, WeightVersions& versions)
    : table_(table),
      rank_(rank),
      chunks_(chunks),
      boundaries_(boundaries),
      versions_(versions),
      index_(static_cast<std::size_t>(table.chunks()), -1) {
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    index_[static_cast<std::size_t>(chunks[i].number)] = static_cast<int>(i);
    auto& skipping = skipping_.emplace_back();
    for (nn::Layer* layer : chunks[i].layers) {
      if (auto* skips = dynamic_cast<nn::SkipLayer*>(layer)) skipping.push_back(skips);
    }
  }
  check_head(table, rank);
  doubled_ = schedule::micros_of_forward(table) == 2;
  for (const auto& layers : skipping_) {
    if (doubled_ && !layers.empty()) {
      throw ConfigError(
          fmt::format("schedule {} takes two micros in one forward, and skip connections go from layer to "
                      "layer by micro",
                      table.name),
          "take a schedule without doubled forwards, such as 1f1b or chimera");
    }
  }
}

void Passes::begin(MicroSource source) {
  source_ = std::move(source);
  const auto micros = static_cast<std::size_t>(table_.micros);
  cells_.clear();
  for (std::size_t i = 0; i < chunks_.size(); ++i) cells_.emplace_back(micros);
  micros_.clear();
  micros_.resize(micros);
  sums_.assign(static_cast<std::size_t>(table_.steps()), {});
  for (const Chunk& chunk : chunks_) {
    for (int micro = 0; micro < table_.micros; ++micro) {
      if (table_.rank_of(chunk.number, micro) == rank_) ++micros_[static_cast<std::size_t>(micro)].chunks_left;
    }
  }
  pairs_.clear();
  pairs_.resize(doubled_ ? (micros + 1) / 2 : 0);
  for (std::size_t i = 0; i < pairs_.size(); ++i) pairs_[i].forwards_left = micros_[2 * i].chunks_left;
  for (const Instruction& it : table_.ranks[static_cast<std::size_t>(rank_)]) {
    if (it.op == Op::kRecompute) cell(it.chunk, it.micro).recomputed = true;
  }
}

std::size_t Passes::index_of(int chunk) const {
  const int index = chunk < 0 ? -1 : index_[static_cast<std::size_t>(chunk)];
  TRIREME_CHECK(index >= 0, "chunk {} is not on rank {}", chunk, rank_);
  return static_cast<std::size_t>(index);
}

Passes::Cell& Passes::cell(int chunk, int micro) { return cells_[index_of(chunk)][static_cast<std::size_t>(micro)]; }

Passes::Running& Passes::running(int micro) {
  Running& running = micros_[static_cast<std::size_t>(micro)];
  if (!running.micro) {
    TRIREME_CHECK(running.chunks_left > 0, "micro {} is through already on rank {}", micro, rank_);
    if (doubled_) {
      pair(micro);
    } else {
      fill(micro, source_(micro));
    }
  }
  return running;
}

Passes::Running& Passes::fill(int micro, Micro data) {
  Running& running = micros_[static_cast<std::size_t>(micro)];
  running.micro = std::make_unique<Micro>(std::move(data));
  running.losses_before = running.micro->context.losses.size();
  return running;
}

/// The one that the micro is in. Its micros are made with it: cut from it, or it is put together from them.
Passes::Pair& Passes::pair(int micro) {
  Pair& pair = pairs_[static_cast<std::size_t>(micro) / 2];
  if (pair.micro) return pair;
  const int first = micro - micro % 2;
  TRIREME_CHECK(pair.forwards_left > 0, "micros {} and {} have been forward already on rank {}", first, first + 1,
                rank_);
  if (table_.micro_parts == 2) {
    pair.micro = std::make_unique<Micro>(source_(first / 2));
    auto [one, other] = halve_rows(*pair.micro);
    fill(first, std::move(one));
    fill(first + 1, std::move(other));
  } else {
    const Running &one = fill(first, source_(first)), &other = fill(first + 1, source_(first + 1));
    pair.micro = std::make_unique<Micro>(join_rows(*one.micro, *other.micro));
    pair.micro->context.watched_rows = rows_of(*one.micro);
  }
  for (Micro* each : {pair.micro.get(), micros_[static_cast<std::size_t>(first)].micro.get(),
                      micros_[static_cast<std::size_t>(first) + 1].micro.get()}) {
    each->context.divided = true;
  }
  pair.micro->context.division = {.first = rows_of(*micros_[static_cast<std::size_t>(first)].micro),
                                  .rows = rows_of(*pair.micro)};
  return pair;
}

const Micro& Passes::forward_micro(int micro) { return doubled_ ? *pair(micro).micro : *running(micro).micro; }

const Micro& Passes::micro(int micro) { return *running(micro).micro; }

nn::Tensors Passes::run_layers(const Chunk& chunk, nn::Tensors tensors, nn::Context& context, nn::Tape* tape) {
  for (nn::Layer* layer : chunk.layers) tensors = layer->forward(std::move(tensors), context, tape);
  return tensors;
}

void Passes::check_boundary(const nn::Tensors& tensors, int chunk, const Micro& micro) const {
  const std::vector<BoundaryTensor> expected = boundaries_(chunk, micro);
  TRIREME_CHECK(tensors.size() == expected.size(), "{} tensors come into chunk {} where {} are expected",
                tensors.size(), chunk, expected.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    TRIREME_CHECK(
        tensors[i].sizes() == at::IntArrayRef(expected[i].sizes) && tensors[i].scalar_type() == expected[i].type,
        "tensor {} into chunk {} has another shape or type than the expected [{}]", i, chunk,
        fmt::join(expected[i].sizes, ", "));
  }
}

/// Those that the previous chunk waits for: tensors without a gradient are left out, and a part of the model that the
/// loss does not depend on has gradient zero.
void Passes::complete_gradients(nn::Tensors& gradients, int chunk, const Micro& micro) const {
  const std::vector<BoundaryTensor> expected = boundaries_(chunk, micro);
  TRIREME_CHECK(gradients.size() == expected.size(), "{} gradients leave chunk {} where {} are expected",
                gradients.size(), chunk, expected.size());
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!expected[i].has_gradient()) {
      gradients[i] = at::Tensor();
    } else if (!gradients[i].defined()) {
      gradients[i] = at::zeros(expected[i].sizes, expected[i].options());
    }
  }
}

/// What this cell's tape holds from now on.
void Passes::count(Cell& cell, const nn::Context& context, std::int64_t bytes) {
  if (context.memory == nullptr) return;
  context.memory->device.add(device::MemoryUse::kActivations, bytes - std::exchange(cell.counted, bytes));
}

/// What a cell's activations take is free again: at once, or with those of the micro that shares their memory.
void Passes::release(int chunk, int micro, const nn::Context& context) {
  Cell& here = cell(chunk, micro);
  if (doubled_) {
    Cell& other = cell(chunk, micro + 1 - 2 * (micro % 2));
    if (!other.tape.empty()) {
      other.counted += std::exchange(here.counted, 0);
      return;
    }
  }
  count(here, context, 0);
}

void Passes::keep(Cell& cell) {
  if (activations_ == nullptr) return;
  cell.kept = QueueMeter::now();
  activations_->arrive(cell.kept);
}

void Passes::let_go(Cell& cell) {
  if (cell.kept != 0) activations_->depart(std::exchange(cell.kept, 0));
}

void Passes::forward(int chunk, int micro) {
  Cell& here = cell(chunk, micro);
  Micro& data = doubled_ ? *pair(micro).micro : *running(micro).micro;
  nn::Tensors inputs = chunk == 0 ? data.inputs : std::move(here.inputs);
  TRIREME_CHECK(!inputs.empty(), "the input of micro {} for chunk {} is not there", micro, chunk);
  const std::int64_t of_first = doubled_ ? rows_of(*running(micro).micro) : 0;
  if (here.recomputed && doubled_) {
    Cell& other = cell(chunk, micro + 1);
    std::tie(here.inputs, other.inputs) = split_rows(inputs, of_first);
    count(other, data.context, bytes_of(other.inputs));
  } else if (here.recomputed) {
    here.inputs = inputs;
  }
  data.context.weights = versions_.take(chunk, micro, /*keep=*/false);
  use_skips(chunk, micro);
  const std::string traced = data.context.events ? fmt::format("chunk {}, micro {}", chunk, micro) : std::string();
  const TimedSpan span(data.context.events, traced, "forward", data.context.rank);
  nn::Tensors outputs =
      run_layers(chunks_[index_of(chunk)], std::move(inputs), data.context, here.recomputed ? nullptr : &here.tape);
  count(here, data.context, here.recomputed ? bytes_of(here.inputs) : here.tape.bytes());
  if (chunk < table_.last_chunk()) {
    check_boundary(outputs, chunk + 1, data);
    const bool local = table_.rank_of(chunk + 1, micro) == rank_;
    (local ? cell(chunk + 1, micro).inputs : here.outputs) = std::move(outputs);
  }
  if (doubled_) divide(chunk, micro, of_first);
  keep(here);
  if (doubled_) keep(cell(chunk, micro + 1));
}

/// After a pass over two micros: what it left goes to their cells, and they go back one by one.
void Passes::divide(int chunk, int micro, std::int64_t of_first) {
  Cell& here = cell(chunk, micro);
  Pair& both = pair(micro);
  if (!here.recomputed) cell(chunk, micro + 1).tape = here.tape.split_rows(of_first, rows_of(*both.micro));
  hand_over(both.micro->context, running(micro).micro->context);
  if (--both.forwards_left == 0) both.micro.reset();
}

void Passes::recompute(int chunk, int micro) {
  Cell& here = cell(chunk, micro);
  nn::Context& context = running(micro).micro->context;
  TRIREME_CHECK(!here.inputs.empty(), "the input of micro {} for chunk {} was not saved", micro, chunk);
  context.weights = versions_.take(chunk, micro, /*keep=*/true);
  use_skips(chunk, micro);
  const std::size_t losses = context.losses.size();
  {
    const nn::CountAsRecomputed count(context);
    run_layers(chunks_[index_of(chunk)], std::move(here.inputs), context, &here.tape);
  }
  context.losses.resize(losses);  // counted in the first run
  here.inputs.clear();
  count(here, context, here.tape.bytes());
}

void Passes::backward(int chunk, int micro, bool weights) {
  Cell& here = cell(chunk, micro);
  Micro& data = *running(micro).micro;
  nn::Tensors gradients = std::move(here.gradients);
  here.gradients.clear();
  if (chunk == table_.last_chunk()) gradients.resize(1);  // the loss is the end
  TRIREME_CHECK(!gradients.empty(), "the gradient of micro {} for chunk {} is not there", micro, chunk);
  data.context.weights = versions_.take(chunk, micro, /*keep=*/false);
  use_skips(chunk, micro);
  const std::string traced = data.context.events ? fmt::format("chunk {}, micro {}", chunk, micro) : std::string();
  const TimedSpan span(data.context.events, traced, "backward", data.context.rank);
  here.tape.set_deferring(!weights);
  const std::vector<nn::Layer*>& layers = chunks_[index_of(chunk)].layers;
  for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) {
    gradients = (*layer)->backward(std::move(gradients), data.context, here.tape);
  }
  TRIREME_CHECK(here.tape.empty(), "chunk {} left frames of micro {} on its tape", chunk, micro);
  if (weights) {  // else what is deferred still reads most of it
    release(chunk, micro, data.context);
    let_go(here);
  }
  if (chunk > 0) {
    complete_gradients(gradients, chunk, data);
    if (table_.rank_of(chunk - 1, micro) == rank_) {
      cell(chunk - 1, micro).gradients = std::move(gradients);
    } else {
      here.input_gradients = std::move(gradients);
    }
  }
  if (weights) pass_over(micro);
}

void Passes::backward_weight(int chunk, int micro) {
  cell(chunk, micro).tape.run_weight_gradients();
  release(chunk, micro, running(micro).micro->context);
  let_go(cell(chunk, micro));
  pass_over(micro);
  release_skips(micro);
}

void Passes::pass_over(int micro) {
  Running& running = this->running(micro);
  if (--running.chunks_left > 0) return;
  const nn::Context& context = running.micro->context;
  PassSums& sums = sums_[static_cast<std::size_t>(table_.step_of(micro))];
  for (std::size_t i = running.losses_before; i < context.losses.size(); ++i) {
    nn::add_term(sums.losses, context.losses[i]);
  }
  sums.flops += context.flops;
  sums.recomputed_flops += context.recomputed_flops;
  running.micro.reset();
}

void Passes::use_skips(int chunk, int micro) {
  for (nn::SkipLayer* layer : skipping_[index_of(chunk)]) layer->use(skips(micro));
}

void Passes::release_skips(int micro) {
  Running& running = micros_[static_cast<std::size_t>(micro)];
  if (running.chunks_left == 0) running.skips = {};
}

void Passes::rewind(int step) {
  for (int micro = 0; micro < table_.micros; ++micro) {
    if (table_.step_of(micro) <= step) continue;
    const auto given_up = std::move(micros_[static_cast<std::size_t>(micro)].micro);
    for (auto& cells : cells_) {
      Cell& here = cells[static_cast<std::size_t>(micro)];
      if (given_up) count(here, given_up->context, 0);
      let_go(here);
      here = Cell{.recomputed = here.recomputed};
    }
  }
  // None of them is back yet, so all their forwards are to come again.
  for (std::size_t i = 0; i < pairs_.size(); ++i) {
    if (table_.step_of(static_cast<int>(2 * i)) <= step) continue;
    pairs_[i].micro.reset();
    pairs_[i].forwards_left = micros_[2 * i].chunks_left;
  }
}

nn::Tensors Passes::take_output(int chunk, int micro) {
  nn::Tensors outputs = std::move(cell(chunk, micro).outputs);
  TRIREME_CHECK(!outputs.empty(), "chunk {} has no output of micro {} to send", chunk, micro);
  return outputs;
}

nn::Tensors Passes::take_input_gradient(int chunk, int micro) {
  nn::Tensors gradients = std::move(cell(chunk, micro).input_gradients);
  TRIREME_CHECK(!gradients.empty(), "chunk {} has no gradient of micro {} to send", chunk, micro);
  return gradients;
}

void Passes::put_input(int chunk, int micro, nn::Tensors inputs) { cell(chunk, micro).inputs = std::move(inputs); }

void Passes::put_gradient(int chunk, int micro, nn::Tensors gradients) {
  cell(chunk, micro).gradients = std::move(gradients);
}

std::vector<PassSums> Passes::end() {
  for (std::size_t micro = 0; micro < micros_.size(); ++micro) {
    TRIREME_CHECK(micros_[micro].chunks_left == 0, "rank {} ends its list, but micro {} is not through", rank_, micro);
  }
  cells_.clear();
  micros_.clear();
  source_ = nullptr;
  return std::move(sums_);
}

}  // namespace trireme::pipeline
