// The engine's kernels for the CPU, as a Python module. See kernels.py for what each call takes.
#include <torch/csrc/utils/pybind.h>

#include "attention.h"
#include "linear.h"
#include "rows.h"
#include "scores.h"

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  // What takes long lets other Python threads run meanwhile.
  const pybind11::call_guard<pybind11::gil_scoped_release> unlocked;
  module.def("pack_weight", &triptych::pack_weight);
  module.def("linear", &triptych::linear, unlocked);
  module.def("attend", &triptych::attend, unlocked);
  module.def("rms_norm", &triptych::rms_norm);
  module.def("score", &triptych::score_rows, unlocked);
  module.def("rotate", &triptych::rotate);
}
