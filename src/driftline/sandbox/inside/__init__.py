"""The program inside a sandbox. Its modules are joined into one file that is handed in, where nothing else is.

So they import the standard library and one another alone, name nothing twice, and import little: all of it counts as
the sandbox's start. Signals and options are numbers for that reason.

    frames       requests and answers on a pipe
    tree         the files
    watch        looks at the whole tree of processes now and then
    streams      what a program reads and prints
    programs     runs one program, and ends whatever it has started
    supervisor   takes the requests; the start of it all
"""
