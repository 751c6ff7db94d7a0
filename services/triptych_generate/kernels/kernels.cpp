// The engine's kernels for the CPU, as a Python module. See kernels.py for what each call takes.
#include <torch/csrc/utils/pybind.h>

#include "attention.h"
#include "linear.h"
#include "rows.h"
#include "scores.h"

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def("pack_weight", &triptych::pack_weight);
  module.def("linear", &triptych::linear);
  module.def("attend", &triptych::attend);
  module.def("rms_norm", &triptych::rms_norm);
  module.def("score", &triptych::score_rows);
  module.def("rotate", &triptych::rotate);
}
