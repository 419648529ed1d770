// augment._native: the compiled inner loops of text augmentation, loaded by augment/core/compiled.py. tests/augment/native compares
// them with counterparts in Python.

#include "columns.h"
#include "draws.h"
#include "pieces.h"
#include "sentence.h"
#include "texts.h"

NB_MODULE(_native, module) {
    nb::set_leak_warnings(false);  // a process may end with draws and pieces in use
    module.attr("INTERFACE") = 13;  // the same as augment.core.compiled.INTERFACE: a module compiled from other sources is not used
    add_sentence(module);
    add_columns(module);
    add_draws(module);
    add_pieces(module);
    module.def("repeats", repeats);
    module.def("word_spans", word_spans);
    module.def("cut", cut);
    module.def("look_alike", look_alike);
}
