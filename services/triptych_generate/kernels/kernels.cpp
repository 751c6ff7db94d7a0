// The engine's kernels for the CPU, as a Python module. See native.py for what each call takes.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "attention.h"
#include "layer.h"
#include "linear.h"
#include "rows.h"
#include "scores.h"

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  using namespace triptych;
  // What takes long lets other Python threads run meanwhile.
  const pybind11::call_guard<pybind11::gil_scoped_release> unlocked;
  module.def("pack_weight", &pack_weight);
  module.def("linear", &triptych::linear, unlocked);
  module.def("attend", &attend, unlocked);
  module.def("rms_norm", &rms_norm);
  module.def("score", &score_rows, unlocked);
  module.def("top", &top_entries, unlocked);
  module.def("rotate", &rotate);
  pybind11::class_<PackedLinear>(module, "PackedLinear")
      .def(pybind11::init<at::Tensor, std::optional<at::Tensor>, int64_t>());
  pybind11::class_<Norm>(module, "Norm").def(pybind11::init<at::Tensor, double>());
  pybind11::class_<Layer>(module, "Layer")
      .def(pybind11::init<int64_t, int64_t, int64_t, Norm, Norm, std::optional<Norm>,
                          std::optional<Norm>, PackedLinear, PackedLinear, PackedLinear,
                          PackedLinear>())
      .def("before", &Layer::before, unlocked)
      .def("after", &Layer::after, unlocked);
}
