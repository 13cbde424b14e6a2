from lab.worlds.shop.server import main

if __name__ == "__main__":
    main()
