from cacseg.cli import main

main()
