// The library that binds C++ to Python, compiled into the extension.

#include <nb_combined.cpp>
