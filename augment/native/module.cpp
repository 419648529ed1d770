// augment._native: the compiled inner loops of text augmentation. It is optional: augment/core/compiled.py loads it if it was built.
//
// All but Pieces has a counterpart in Python that documents it and gives the same results; tests/augment/native compares the two.
// Without Pieces the tokenizer encodes whole texts.

#include "columns.h"
#include "draws.h"
#include "pieces.h"
#include "runs.h"
#include "sentence.h"
#include "texts.h"

NB_MODULE(_native, module) {
    nb::set_leak_warnings(false);  // a process may end with draws and pieces in use
    module.attr("INTERFACE") = 12;  // the same as augment.core.compiled.INTERFACE: a module compiled from other sources is not used
    add_sentence(module);
    add_columns(module);
    add_draws(module);
    add_pieces(module);
    module.def("repeats", repeats);
    module.def("word_spans", word_spans);
    module.def("cut", cut);
    module.def("look_alike", look_alike);
}
