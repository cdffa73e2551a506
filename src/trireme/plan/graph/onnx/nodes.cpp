// What each kind of ONNX node becomes.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "trireme/plan/graph/onnx/importer.h"

namespace trireme::plan::graph {

using formats::OnnxNode;

/// The importer's insides, for the functions of this file.
struct OnnxHandlers {
  // ---- Integers that are known before the model runs ----

  static void constant(OnnxImporter& in, const OnnxNode& node) {
    if (const auto* value = node.attribute("value"); value && !value->tensors.empty()) {
      const formats::OnnxTensor& tensor = value->tensors[0];
      in.stored_[node.outputs[0]] = &tensor;
      if (!tensor.integers.empty() || tensor.type == formats::OnnxType::kInt64)
        in.integers_[node.outputs[0]] = tensor.integers;
      return;
    }
    if (const auto* value = node.attribute("value_ints")) {
      in.integers_[node.outputs[0]] = value->integers;
    } else if (const auto* one = node.attribute("value_int")) {
      in.integers_[node.outputs[0]] = {one->integer};
    } else {
      in.fail(node, "its value is neither a tensor nor integers", "export the model again");
    }
  }

  static void shape(OnnxImporter& in, const OnnxNode& node) {
    std::vector<std::int64_t> sizes;
    for (const int axis : in.input(node, 0).axes) sizes.push_back(axis == kUnitAxis ? 1 : in.size(axis));
    in.integers_[node.outputs[0]] = std::move(sizes);
  }

  /// The same numbers under another name; false where the node is about tensors.
  static bool pass_integers(OnnxImporter& in, const OnnxNode& node) {
    if (!in.has_integers(node, 0)) return false;
    in.integers_[node.outputs[0]] = in.integers(node, 0, "input");
    return true;
  }

  // ---- Another name, or another order ----

  static void same(OnnxImporter& in, const OnnxNode& node) {
    if (pass_integers(in, node)) return;
    if (const formats::OnnxTensor* stored = in.stored(node, 0); stored) {
      in.stored_[node.outputs[0]] = stored;
      return;
    }
    in.values_[node.outputs[0]] = in.input(node, 0);
  }

  /// At the end of a model a softmax is part of the loss.
  static void softmax(OnnxImporter& in, const OnnxNode& node) {
    const bool is_read = std::ranges::any_of(in.model_.nodes, [&](const OnnxNode& other) {
      return std::ranges::find(other.inputs, node.outputs[0]) != other.inputs.end();
    });
    if (is_read)
      in.fail(node, "a softmax is imported at the end of a model, not between operators",
              "attention that is written out as MatMul and Softmax is not imported: take a built-in transformer");
    same(in, node);
  }

  static void transpose(OnnxImporter& in, const OnnxNode& node) {
    const OnnxOperand x = in.input(node, 0);
    std::vector<std::int64_t> order;
    const auto* permutation = node.attribute("perm");
    if (permutation) order = permutation->integers;
    for (std::size_t i = x.axes.size(); !permutation && i-- > 0;) order.push_back(static_cast<std::int64_t>(i));
    std::vector<std::int64_t> sorted = order;
    std::ranges::sort(sorted);
    std::vector<int> axes;
    for (std::size_t i = 0; i < std::max(sorted.size(), x.axes.size()); ++i) {
      if (sorted.size() != x.axes.size() || sorted[i] != static_cast<std::int64_t>(i))
        in.fail(node, "its perm is no order of the axes", "export the model again");
      axes.push_back(x.axes[static_cast<std::size_t>(order[i])]);
    }
    if (OnnxImporter::real(axes) == OnnxImporter::real(x.axes)) {
      in.values_[node.outputs[0]] = {x.tensor, axes};
      return;
    }
    in.emit(node, {.kind = OpKind::kEinsum, .inputs = {x.tensor}}, axes);
  }

  // ---- Means and norms ----

  static void mean_over(OnnxImporter& in, const OnnxNode& node, const OnnxOperand& x, std::vector<std::size_t> over,
                        bool keeps) {
    std::vector<int> axes;
    for (std::size_t i = 0; i < x.axes.size(); ++i) {
      const bool gone = std::ranges::find(over, i) != over.end();
      if (!gone) axes.push_back(x.axes[i]);
      if (gone && keeps) axes.push_back(kUnitAxis);
    }
    if (OnnxImporter::real(axes) == OnnxImporter::real(x.axes)) {
      in.values_[node.outputs[0]] = {x.tensor, axes};
      return;
    }
    in.emit(node, {.kind = OpKind::kEinsum, .inputs = {x.tensor}, .function = "mean"}, axes);
  }

  static void global_average(OnnxImporter& in, const OnnxNode& node) {
    const OnnxOperand x = OnnxWindowHandlers::image(in, node);
    mean_over(in, node, x, {2, 3}, true);
  }

  static void reduce_mean(OnnxImporter& in, const OnnxNode& node) {
    const OnnxOperand x = in.input(node, 0);
    std::vector<std::int64_t> listed_axes;
    if (const auto* given = node.attribute("axes")) listed_axes = given->integers;
    if (in.has_input(node, 1)) listed_axes = in.integers(node, 1, "axes");
    if (listed_axes.empty()) in.fail(node, "it averages over everything", "name the axes");
    std::vector<std::size_t> over;
    for (const std::int64_t axis : listed_axes) over.push_back(in.axis_of(node, axis, x.axes.size()));
    mean_over(in, node, x, over, in.attribute(node, "keepdims", 1, 0, 1) == 1);
  }

  static void batch_norm(OnnxImporter& in, const OnnxNode& node) {
    const OnnxOperand x = in.input(node, 0);
    if (x.axes.size() < 2 || x.axes[1] == kUnitAxis)
      in.fail(node, "its input has no channels", "export the model again");
    Op op{.kind = OpKind::kNorm,
          .inputs = {x.tensor, in.parameter(node, 1, {x.axes[1]}), in.parameter(node, 2, {x.axes[1]})},
          .function = "batch"};
    for (std::size_t i = 0; i < x.axes.size(); ++i) {
      if (i != 1 && x.axes[i] != kUnitAxis) op.dims.push_back(x.axes[i]);
    }
    in.emit(node, std::move(op), x.axes);
  }

  static void layer_norm(OnnxImporter& in, const OnnxNode& node) {
    const OnnxOperand x = in.input(node, 0);
    const std::size_t axis = in.axis_of(node, in.attribute(node, "axis", -1, -16, 16), x.axes.size());
    if (axis + 1 != x.axes.size() || x.axes.back() == kUnitAxis)
      in.fail(node, "it is over more than the last axis", "graphs have layer norms over one dimension");
    in.emit(node,
            {.kind = OpKind::kNorm,
             .inputs = {x.tensor, in.parameter(node, 1, {x.axes.back()}), in.parameter(node, 2, {x.axes.back()})},
             .function = "layer",
             .dims = {x.axes.back()}},
            x.axes);
  }

  // ---- Elementwise ----

  static void unary(OnnxImporter& in, const OnnxNode& node, const char* function) {
    const OnnxOperand x = in.input(node, 0);
    in.emit(node, {.kind = OpKind::kElementwise, .inputs = {x.tensor}, .function = function}, x.axes);
  }
  static void relu(OnnxImporter& in, const OnnxNode& node) { unary(in, node, "relu"); }
  static void gelu(OnnxImporter& in, const OnnxNode& node) { unary(in, node, "gelu"); }
  static void sigmoid(OnnxImporter& in, const OnnxNode& node) { unary(in, node, "sigmoid"); }
  static void tanh(OnnxImporter& in, const OnnxNode& node) { unary(in, node, "tanh"); }

  static void dropout(OnnxImporter& in, const OnnxNode& node) {
    double ratio = 0.5;
    if (const auto* given = node.attribute("ratio")) ratio = given->real;
    if (const formats::OnnxTensor* given = in.stored(node, 1); given && !given->reals.empty()) ratio = given->reals[0];
    if (ratio == 0) return same(in, node);
    if (ratio != 0.5)
      in.fail(node, fmt::format("it drops {} of its input, and graphs drop half", ratio), "drop 0.5 or 0");
    unary(in, node, "dropout");
  }

  /// Additions and products with ONNX's broadcasting; a stored operand is a parameter.
  static void broadcast(OnnxImporter& in, const OnnxNode& node, const char* function) {
    std::size_t rank = 0;
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      if (!in.stored(node, i)) rank = std::max(rank, in.input(node, i).axes.size());
    }
    if (rank == 0) in.fail(node, "both operands are stored", "simplify the model (constant folding)");
    std::vector<int> axes(rank, kUnitAxis);
    const auto merge = [&](const std::vector<int>& others) {
      for (std::size_t i = 0; i < others.size(); ++i) {
        int& axis = axes[rank - others.size() + i];
        if (others[i] == kUnitAxis) continue;
        if (axis == kUnitAxis) {
          axis = others[i];
        } else if (in.size(axis) != in.size(others[i])) {
          in.fail(node, fmt::format("its operands have {} and {} along axis {}", in.size(axis), in.size(others[i]), i),
                  "sizes of one are broadcast, others must be equal");
        } else {
          in.join(axis, others[i]);
        }
      }
    };
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      if (!in.stored(node, i)) merge(in.input(node, i).axes);
    }
    Op op{.kind = OpKind::kElementwise, .function = function};
    std::vector<std::pair<int, std::vector<int>>> wanted;
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      std::vector<int> own;
      if (const formats::OnnxTensor* stored = in.stored(node, i)) {
        if (stored->dims.size() > rank || std::ranges::all_of(stored->dims, [](auto d) { return d == 1; }))
          in.fail(node, "one operand is a stored number", "graphs have no operator that scales by a constant");
        for (std::size_t k = 0; k < stored->dims.size(); ++k) {
          const int axis = axes[rank - stored->dims.size() + k];
          if (stored->dims[k] == 1) continue;
          if (axis == kUnitAxis) in.fail(node, "a stored operand is larger than the others", "export the model again");
          own.push_back(axis);
        }
        op.inputs.push_back(in.parameter(node, i, own));
      } else {
        const OnnxOperand& operand = in.input(node, i);
        for (std::size_t k = 0; k < operand.axes.size(); ++k) {
          if (operand.axes[k] != kUnitAxis) own.push_back(axes[rank - operand.axes.size() + k]);
        }
        op.inputs.push_back(operand.tensor);
      }
      wanted.emplace_back(static_cast<int>(i), std::move(own));
    }
    for (const auto& [at, dims] : wanted) in.agree(at, dims);
    in.emit(node, std::move(op), axes);
  }
  static void add(OnnxImporter& in, const OnnxNode& node) { broadcast(in, node, "add"); }
  static void multiply(OnnxImporter& in, const OnnxNode& node) { broadcast(in, node, "multiply"); }

  // ---- GEMM and embedding ----

  static void gemm(OnnxImporter& in, const OnnxNode& node) {
    const OnnxOperand x = in.input(node, 0);
    const formats::OnnxTensor* weight = in.stored(node, 1);
    if (!weight || weight->dims.size() != 2 ||
        std::ranges::any_of(weight->dims, [](auto d) { return d < 1 || d > (1 << 30); }))
      in.fail(node, "its weights are not stored with two axes", "export the model again");
    for (const char* factor : {"alpha", "beta"}) {
      if (const auto* given = node.attribute(factor); given && given->real != 1)
        in.fail(node, fmt::format("its {} is {}", factor, given->real), "graphs have GEMMs with factors of one");
    }
    in.attribute(node, "transA", 0, 0, 0);
    const bool transposed = in.attribute(node, "transB", 0, 0, 1) == 1;
    if (x.axes.size() != 2 || x.axes[1] == kUnitAxis) in.fail(node, "its input has not two axes", "flatten it before");
    const int made = in.new_dim(node.name + ".out", weight->dims[transposed ? 0 : 1]);
    const std::vector<int> dims = transposed ? std::vector<int>{made, x.axes[1]} : std::vector<int>{x.axes[1], made};
    Op op{.inputs = {x.tensor, in.parameter(node, 1, dims)}, .bias = in.has_input(node, 2)};
    if (op.bias) op.inputs.push_back(in.parameter(node, 2, {made}));
    in.emit(node, std::move(op), {x.axes[0], made});
  }

  static void matmul(OnnxImporter& in, const OnnxNode& node) {
    const OnnxOperand a = in.input(node, 0);
    if (a.axes.size() < 2 || a.axes.back() == kUnitAxis)
      in.fail(node, "its first input is no matrix", "flatten it before");
    const formats::OnnxTensor* weight = in.stored(node, 1);
    std::vector<int> axes(a.axes.begin(), a.axes.end() - 1);
    if (!weight) {
      in.fail(node, "it multiplies two computed matrices",
              "attention that is written out as MatMul and Softmax is not imported: take a built-in transformer");
    }
    if (weight->dims.size() != 2 || std::ranges::any_of(weight->dims, [](auto d) { return d < 1 || d > (1 << 30); }))
      in.fail(node, "its weights are not stored with two axes", "export the model again");
    const int made = in.new_dim(node.name + ".out", weight->dims[1]);
    axes.push_back(made);
    in.emit(node, {.inputs = {a.tensor, in.parameter(node, 1, {a.axes.back(), made})}}, axes);
  }

  static void gather(OnnxImporter& in, const OnnxNode& node) {
    if (in.has_integers(node, 0)) {  // a size out of a shape
      const std::vector<std::int64_t>& from = in.integers(node, 0, "input");
      std::vector<std::int64_t> taken;
      for (const std::int64_t at : in.integers(node, 1, "index"))
        taken.push_back(from[in.axis_of(node, at, from.size())]);
      in.integers_[node.outputs[0]] = std::move(taken);
      return;
    }
    const formats::OnnxTensor* table = in.stored(node, 0);
    in.attribute(node, "axis", 0, 0, 0);
    if (!table || table->dims.size() != 2 ||
        std::ranges::any_of(table->dims, [](auto d) { return d < 1 || d > (1 << 30); }))
      in.fail(node, "it does not take rows of a stored table", "graphs gather rows of embeddings");
    const OnnxOperand ids = in.input(node, 1);
    if (in.graph_.tensor(ids.tensor).dtype != DType::kInt32 || std::ranges::find(ids.axes, kUnitAxis) != ids.axes.end())
      in.fail(node, "its indices are no input of integers", "export the model again");
    const int rows = in.new_dim(node.name + ".rows", table->dims[0]),
              made = in.new_dim(node.name + ".c", table->dims[1]);
    std::vector<int> axes = ids.axes;
    axes.push_back(made);
    in.emit(node, {.kind = OpKind::kGather, .inputs = {in.parameter(node, 0, {rows, made}), ids.tensor}}, axes);
  }

  // ---- Shapes ----

  static void concat(OnnxImporter& in, const OnnxNode& node) {
    if (!node.inputs.empty() && in.has_integers(node, 0)) {
      std::vector<std::int64_t> all;
      for (std::size_t i = 0; i < node.inputs.size(); ++i) {
        const auto& part = in.integers(node, i, "input");
        all.insert(all.end(), part.begin(), part.end());
      }
      if (all.size() > 64) in.fail(node, "its shape has more than 64 axes", "export the model again");
      in.integers_[node.outputs[0]] = std::move(all);
      return;
    }
    const OnnxOperand first = in.input(node, 0);
    const std::size_t axis = in.axis_of(node, in.attribute(node, "axis", 0, -16, 16), first.axes.size());
    std::vector<int> axes = first.axes;
    Index sum = 0;
    Op op{.kind = OpKind::kConcat};
    std::vector<std::vector<int>> wanted;
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      const OnnxOperand part = in.input(node, i);
      if (part.axes.size() != axes.size() || part.axes[axis] == kUnitAxis || in.size(part.axes[axis]) > (1 << 30))
        in.fail(node, "its inputs differ in their axes", "export the model again");
      sum += in.size(part.axes[axis]);
      std::vector<int> own = axes;
      own[axis] = part.axes[axis];
      for (std::size_t k = 0; k < axes.size(); ++k) {
        if (k == axis) continue;
        if ((axes[k] == kUnitAxis) != (part.axes[k] == kUnitAxis) ||
            (axes[k] != kUnitAxis && in.size(axes[k]) != in.size(part.axes[k])))
          in.fail(node, fmt::format("its inputs differ along axis {} too", k), "export the model again");
        if (axes[k] != kUnitAxis) in.join(axes[k], part.axes[k]);
      }
      op.inputs.push_back(part.tensor);
      wanted.push_back(std::move(own));
    }
    axes[axis] = in.new_dim(node.name + ".joined", sum);
    op.dims = {axes[axis]};
    for (std::size_t i = 0; i < wanted.size(); ++i) in.agree(static_cast<int>(i), wanted[i]);
    in.emit(node, std::move(op), axes);
  }

  static void split(OnnxImporter& in, const OnnxNode& node) {
    const OnnxOperand x = in.input(node, 0);
    const std::size_t axis = in.axis_of(node, in.attribute(node, "axis", 0, -16, 16), x.axes.size());
    const int whole = x.axes[axis];
    if (whole == kUnitAxis) in.fail(node, "there is nothing to split", "export the model again");
    std::vector<std::int64_t> parts;
    if (const auto* given = node.attribute("split")) parts = given->integers;
    if (in.has_input(node, 1)) parts = in.integers(node, 1, "split");
    const auto count = static_cast<Index>(node.outputs.size());
    if (parts.empty()) {
      const Index each = (in.size(whole) + count - 1) / count;
      for (Index left = in.size(whole); left > 0; left -= each) parts.push_back(std::min(each, left));
    }
    Index sum = 0;
    for (const std::int64_t part : parts) sum += part > 0 && part <= in.size(whole) ? part : in.size(whole) + 1;
    if (sum != in.size(whole) || parts.size() != node.outputs.size())
      in.fail(node, fmt::format("its parts do not make the {} of the whole", in.size(whole)), "export the model again");
    Op op{.kind = OpKind::kSplit, .inputs = {x.tensor}, .dims = {whole}};
    op.name = in.unique(node.name, in.op_names_);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      std::vector<int> axes = x.axes;
      axes[axis] = in.new_dim(fmt::format("{}.{}", node.name, i), parts[i]);
      op.outputs.push_back(in.add_activation(node.outputs[i], OnnxImporter::real(axes)));
      in.graph_.tensors.back().dtype = in.graph_.tensor(x.tensor).dtype;
      in.values_[node.outputs[i]] = {op.outputs.back(), axes};
    }
    in.graph_.ops.push_back(std::move(op));
  }

  /// Axes of these sizes out of the input's, row by row: groups of axes with the same product.
  static void regroup(OnnxImporter& in, const OnnxNode& node, const std::vector<Index>& sizes) {
    const OnnxOperand x = in.input(node, 0);
    const std::vector<int> from = OnnxImporter::real(x.axes);
    std::vector<int> axes;
    Op op{.kind = OpKind::kReshape, .inputs = {x.tensor}};
    std::size_t next = 0;
    for (std::size_t i = 0; i < sizes.size();) {
      if (next < from.size() && in.size(from[next]) == sizes[i]) {  // as it was
        axes.push_back(from[next++]);
        ++i;
        continue;
      }
      if (sizes[i] == 1) {
        axes.push_back(kUnitAxis);
        ++i;
        continue;
      }
      Regroup group;
      double left = 1, right = 1;
      do {
        if (left <= right && next < from.size()) {
          left *= static_cast<double>(in.size(from[next]));
          group.from.push_back(from[next++]);
        } else if (i < sizes.size()) {
          right *= static_cast<double>(sizes[i]);
          group.to.push_back(in.new_dim(fmt::format("{}.{}", node.name, axes.size()), sizes[i++]));
          axes.push_back(group.to.back());
        } else {
          break;
        }
      } while (left != right || group.to.empty() || group.from.empty());
      if (left != right) in.fail(node, "the new shape has other elements than the old one", "export the model again");
      op.regroups.push_back(std::move(group));
    }
    for (; next < from.size(); ++next) {
      if (in.size(from[next]) != 1)
        in.fail(node, "the new shape has fewer elements than the old one", "export the model again");
      if (op.regroups.empty()) in.fail(node, "it takes away samples or channels of one", "take a larger batch");
      op.regroups.back().from.push_back(from[next]);
    }
    if (op.regroups.empty()) {
      in.values_[node.outputs[0]] = {x.tensor, axes};
      return;
    }
    in.emit(node, std::move(op), axes);
  }

  static Index size_of_axis(const OnnxImporter& in, int axis) { return axis == kUnitAxis ? 1 : in.size(axis); }

  static void flatten(OnnxImporter& in, const OnnxNode& node) {
    const OnnxOperand& x = in.input(node, 0);
    const std::int64_t given = in.attribute(node, "axis", 1, -16, 16);
    const std::size_t axis =
        given == static_cast<std::int64_t>(x.axes.size()) ? x.axes.size() : in.axis_of(node, given, x.axes.size());
    std::vector<Index> sizes{1, 1};
    for (std::size_t i = 0; i < x.axes.size(); ++i) sizes[i < axis ? 0 : 1] *= size_of_axis(in, x.axes[i]);
    regroup(in, node, sizes);
  }

  static void reshape(OnnxImporter& in, const OnnxNode& node) {
    if (pass_integers(in, node)) return;
    const OnnxOperand& x = in.input(node, 0);
    std::vector<std::int64_t> wanted;
    if (const auto* given = node.attribute("shape")) wanted = given->integers;
    if (in.has_input(node, 1)) wanted = in.integers(node, 1, "shape");
    double all = 1, known = 1;
    for (const int axis : x.axes) all *= static_cast<double>(size_of_axis(in, axis));
    int open = -1;
    std::vector<Index> sizes;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      Index size = wanted[i];
      if (size == 0 && i < x.axes.size()) size = size_of_axis(in, x.axes[i]);
      if (size == -1 && open < 0) {
        open = static_cast<int>(i);
        size = 1;
      }
      if (size < 1 || size > (Index{1} << 40))
        in.fail(node, fmt::format("its shape has {}", wanted[i]), "export the model again");
      known *= static_cast<double>(size);
      sizes.push_back(size);
    }
    if (open >= 0) sizes[static_cast<std::size_t>(open)] = static_cast<Index>(all / known);
    if (open >= 0 && static_cast<double>(sizes[static_cast<std::size_t>(open)]) * known != all)
      in.fail(node, "the new shape does not divide the old one's elements", "export the model again");
    if (open < 0 && known != all)
      in.fail(node, "the new shape has other elements than the old one", "export the model again");
    regroup(in, node, sizes);
  }

  static void squeeze(OnnxImporter& in, const OnnxNode& node) {
    if (pass_integers(in, node)) return;
    const OnnxOperand x = in.input(node, 0);
    std::vector<std::int64_t> listed_axes;
    if (const auto* given = node.attribute("axes")) listed_axes = given->integers;
    if (in.has_input(node, 1)) listed_axes = in.integers(node, 1, "axes");
    std::vector<int> axes = x.axes;
    std::vector<bool> gone(axes.size(), listed_axes.empty());
    for (const std::int64_t axis : listed_axes) gone[in.axis_of(node, axis, axes.size())] = true;
    std::vector<int> left;
    for (std::size_t i = 0; i < axes.size(); ++i) {
      if (gone[i] && axes[i] != kUnitAxis && !listed_axes.empty())
        in.fail(node, fmt::format("axis {} is not one that a reduction has left", i), "export the model again");
      if (!gone[i] || axes[i] != kUnitAxis) left.push_back(axes[i]);
    }
    in.values_[node.outputs[0]] = {x.tensor, left};
  }

  static void unsqueeze(OnnxImporter& in, const OnnxNode& node) {
    if (pass_integers(in, node)) return;
    const OnnxOperand x = in.input(node, 0);
    std::vector<std::int64_t> listed_axes;
    if (const auto* given = node.attribute("axes")) listed_axes = given->integers;
    if (in.has_input(node, 1)) listed_axes = in.integers(node, 1, "axes");
    if (listed_axes.size() > 8) in.fail(node, "it adds more than eight axes", "export the model again");
    std::vector<int> axes(x.axes.size() + listed_axes.size(), kUnitAxis);
    std::vector<bool> is_new(axes.size(), false);
    for (const std::int64_t axis : listed_axes) is_new[in.axis_of(node, axis, axes.size())] = true;
    if (std::ranges::count(is_new, true) != static_cast<std::ptrdiff_t>(listed_axes.size()))
      in.fail(node, "it adds an axis twice", "export the model again");
    std::size_t next = 0;
    for (std::size_t i = 0; i < axes.size(); ++i) {
      if (!is_new[i]) axes[i] = x.axes[next++];
    }
    in.values_[node.outputs[0]] = {x.tensor, axes};
  }
};

namespace {

constexpr std::pair<std::string_view, OnnxHandler> kHandlers[] = {
    {"Add", &OnnxHandlers::add},
    {"AveragePool", &OnnxWindowHandlers::average_pool},
    {"BatchNormalization", &OnnxHandlers::batch_norm},
    {"Cast", &OnnxHandlers::same},
    {"Concat", &OnnxHandlers::concat},
    {"Constant", &OnnxHandlers::constant},
    {"Conv", &OnnxWindowHandlers::convolution},
    {"ConvTranspose", &OnnxWindowHandlers::transposed_convolution},
    {"Dropout", &OnnxHandlers::dropout},
    {"Flatten", &OnnxHandlers::flatten},
    {"Gather", &OnnxHandlers::gather},
    {"Gelu", &OnnxHandlers::gelu},
    {"Gemm", &OnnxHandlers::gemm},
    {"GlobalAveragePool", &OnnxHandlers::global_average},
    {"Identity", &OnnxHandlers::same},
    {"LayerNormalization", &OnnxHandlers::layer_norm},
    {"LogSoftmax", &OnnxHandlers::softmax},
    {"MatMul", &OnnxHandlers::matmul},
    {"MaxPool", &OnnxWindowHandlers::max_pool},
    {"Mul", &OnnxHandlers::multiply},
    {"ReduceMean", &OnnxHandlers::reduce_mean},
    {"Relu", &OnnxHandlers::relu},
    {"Reshape", &OnnxHandlers::reshape},
    {"Shape", &OnnxHandlers::shape},
    {"Sigmoid", &OnnxHandlers::sigmoid},
    {"Softmax", &OnnxHandlers::softmax},
    {"Split", &OnnxHandlers::split},
    {"Squeeze", &OnnxHandlers::squeeze},
    {"Sum", &OnnxHandlers::add},
    {"Tanh", &OnnxHandlers::tanh},
    {"Transpose", &OnnxHandlers::transpose},
    {"Unsqueeze", &OnnxHandlers::unsqueeze},
};

}  // namespace

OnnxHandler onnx_handler(std::string_view type) {
  for (const auto& [name, handler] : kHandlers) {
    if (name == type) return handler;
  }
  return nullptr;
}

std::vector<std::string> onnx_operators() {
  std::vector<std::string> names;
  for (const auto& [name, handler] : kHandlers) names.emplace_back(name);
  return names;
}

}  // namespace trireme::plan::graph
